package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/Azure/go-amqp"
)

// What a scenario gets: the connection strings of the running broker, and the test to ask. A scenario that fails
// panics; the clients it opened are closed afterwards.
type world struct {
	context.Context
	brokers map[string]string
	lines   *bufio.Scanner
	opened  []*sb.Client
}

func (w *world) ask(question string, details map[string]any) any {
	message := map[string]any{"ask": question}
	for key, value := range details {
		message[key] = value
	}
	say(message)
	if !w.lines.Scan() {
		panic("the test has ended")
	}
	var heard struct{ Answer any }
	check(json.Unmarshal(w.lines.Bytes(), &heard))
	return heard.Answer
}

func (w *world) advance(seconds int) {
	w.ask("advance", map[string]any{"seconds": seconds})
}

// What time it is for the broker.
func (w *world) now() time.Time {
	return time.UnixMilli(int64(w.ask("now", nil).(float64)))
}

func (w *world) connect(connectionString string, options sb.ClientOptions) *sb.Client {
	options.RetryOptions = sb.RetryOptions{MaxRetries: -1}
	client := must(sb.NewClientFromConnectionString(connectionString, &options))
	w.opened = append(w.opened, client)
	return client
}

func (w *world) client() *sb.Client {
	return w.connect(w.brokers["plain"], sb.ClientOptions{})
}

// The SDK looks for a port that is in the connection string in the certificate too.
func (w *world) clientWithTLS() *sb.Client {
	name, _, _ := strings.Cut(w.host(), ":")
	connectionString := strings.Replace(w.brokers["tls"], w.host(), name, 1)
	return w.connect(connectionString, sb.ClientOptions{CustomEndpoint: w.host()})
}

// The connection string, with another key.
func (w *world) withKey(name string, key string) string {
	plain := strings.Replace(w.brokers["plain"], "RootManageSharedAccessKey", name, 1)
	return strings.Replace(plain, "SAS_KEY_VALUE", key, 1)
}

// Where the broker is, as host:port.
func (w *world) host() string {
	endpoint, _, _ := strings.Cut(w.brokers["plain"], ";")
	return strings.TrimPrefix(endpoint, "Endpoint=sb://")
}

// Over TLS for every connection string: this SDK supports nothing else.
func (w *world) admin() *admin.Client {
	return w.adminWith(azcore.ClientOptions{}, w.brokers["plain"])
}

func (w *world) adminWith(options azcore.ClientOptions, connectionString string) *admin.Client {
	options.Retry = policy.RetryOptions{MaxRetries: -1}
	return must(admin.NewClientFromConnectionString(connectionString, &admin.ClientOptions{ClientOptions: options}))
}

// Sends every request in clear text.
type withoutTLS struct{}

func (withoutTLS) Do(request *policy.Request) (*http.Response, error) {
	request.Raw().URL.Scheme = "http"
	return request.Next()
}

// --- messages ---

func text(body string) *sb.Message {
	return &sb.Message{Body: []byte(body)}
}

func (w *world) send(client *sb.Client, entity string, messages ...*sb.Message) {
	sender := must(client.NewSender(entity, nil))
	for _, message := range messages {
		check(sender.SendMessage(w, message, nil))
	}
	check(sender.Close(w))
}

type receiver interface {
	ReceiveMessages(context.Context, int, *sb.ReceiveMessagesOptions) ([]*sb.ReceivedMessage, error)
	PeekMessages(context.Context, int, *sb.PeekMessagesOptions) ([]*sb.ReceivedMessage, error)
}

// Exactly that many messages, however the SDK cuts them into batches.
func (w *world) receive(from receiver, count int) []*sb.ReceivedMessage {
	found := []*sb.ReceivedMessage{}
	for len(found) < count {
		found = append(found, must(from.ReceiveMessages(w, count-len(found), nil))...)
	}
	return found
}

// The bodies of everything that is there.
func (w *world) peek(from receiver) []string {
	return bodies(must(from.PeekMessages(w, 100, &sb.PeekMessagesOptions{FromSequenceNumber: ptr(int64(1))})))
}

func bodies(messages []*sb.ReceivedMessage) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.Body))
	}
	return found
}

// --- what must be so ---

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func ptr[T any](value T) *T {
	return &value
}

func same(found any, expected any) {
	if !reflect.DeepEqual(found, expected) {
		panic(fmt.Sprintf("found %s, expected %s", shown(found), shown(expected)))
	}
}

func shown(value any) string {
	line, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("%#v", value)
	}
	return fmt.Sprintf("%T %s", value, line)
}

// The entity that a link was for is not there. The SDK leaves it at the AMQP error, and does not try again.
func notFound(err error) {
	var known *amqp.Error
	if !errors.As(err, &known) || known.Condition != amqp.ErrCondNotFound {
		panic(fmt.Sprintf("%v is not the error %q", err, amqp.ErrCondNotFound))
	}
}

// The SDK knows why it failed.
func refused(code sb.Code, err error) {
	var known *sb.Error
	if !errors.As(err, &known) || known.Code != code {
		panic(fmt.Sprintf("%v is not the error %q", err, code))
	}
}

// The same of an administration client, whose errors are others.
func restRefused(status int, words string, err error) {
	var known *azcore.ResponseError
	if !errors.As(err, &known) || known.StatusCode != status || !strings.Contains(err.Error(), words) {
		panic(fmt.Sprintf("%v is not status %d with %q", err, status, words))
	}
}

// The items of each page.
func pages[R any, T any](w *world, pager *runtime.Pager[R], items func(R) []T) [][]T {
	found := [][]T{}
	for pager.More() {
		if page := items(must(pager.NextPage(w))); len(page) > 0 {
			found = append(found, page)
		}
	}
	return found
}

func each[T any, S any](values []T, of func(T) S) []S {
	found := []S{}
	for _, value := range values {
		found = append(found, of(value))
	}
	return found
}
