// Runs scenarios, one at a time, for a test that speaks JSON lines with it:
//
//	in   {"run": name, "brokers": {...}}          out  {"name": name, "error": null or the reason}
//
// While a scenario runs it may ask the test for something it cannot do itself:
//
//	out  {"ask": "advance", "seconds": 61}        in   {"answer": ...}
//
// Or it does single things as they come, side by side, for scenarios that are the same through every SDK (calls.go):
//
//	in   {"id": 1, "call": "send", ...}           out  {"id": 1, "value": ...} or {"id": 1, "error": {...}}
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"
)

const scenarioTime = 45 * time.Second

type scenario struct {
	name string
	run  func(*world)
}

func main() {
	scenarios := append(append([]scenario{}, administration...), messaging...)
	lines := input()
	known := map[string]func(*world){}
	names := []string{}
	for _, each := range scenarios {
		known[each.name] = each.run
		names = append(names, each.name)
	}
	say(map[string]any{"scenarios": names})
	for lines.Scan() {
		if isCall(lines.Bytes()) {
			answer(lines.Bytes())
			continue
		}
		var asked struct {
			Run     string
			Brokers map[string]string
		}
		check(json.Unmarshal(lines.Bytes(), &asked))
		say(map[string]any{"name": asked.Run, "error": outcome(known[asked.Run], asked.Brokers, lines)})
	}
}

// Why the scenario failed, or nil.
func outcome(run func(*world), brokers map[string]string, lines *bufio.Scanner) (reason any) {
	ctx, cancel := context.WithTimeout(context.Background(), scenarioTime)
	defer cancel()
	w := &world{Context: ctx, brokers: brokers, lines: lines}
	defer func() {
		if failure := recover(); failure != nil {
			reason = fmt.Sprintf("%v\n%s", failure, debug.Stack())
		}
		for _, client := range w.opened {
			if err := client.Close(ctx); err != nil && reason == nil {
				reason = fmt.Sprintf("close failed: %v", err)
			}
		}
	}()
	run(w)
	return nil
}

func say(message map[string]any) {
	line, err := json.Marshal(message)
	check(err)
	fmt.Println(string(line))
}
