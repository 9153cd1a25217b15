package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/Azure/go-amqp"
	"golang.org/x/net/websocket"
)

// Single things that the program is told to do, side by side: conformance/program.py has the words.
type asked struct {
	ID   int
	Call string

	Handle, Client, Sender, Receiver, Message, Administrator string // of what was opened or received before

	Connection, Transport string
	Retries               int32

	Queue, Topic, Subscription, Part string
	Deletes, Batch                   bool
	Session, State                   *string

	Messages                 []told
	Numbers                  []int64
	Size, Count              int
	Wait                     float64
	At                       int64
	Start                    *int64
	How, Reason, Description string
	Properties               map[string]any

	Kind     string
	Path     []string
	Settings settings
}

// A message as the other side says it.
type told struct {
	Body, ID, Session, Subject, Correlation, To, Partition *string
	ContentType                                            *string `json:"content_type"`
	ReplyTo                                                *string `json:"reply_to"`
	ReplySession                                           *string `json:"reply_session"`
	Size                                                   int
	TTL, At                                                *int64
	Properties                                             map[string]any
}

var conditions = map[amqp.ErrCond]string{
	"amqp:not-found":                         "not-found",
	"amqp:unauthorized-access":               "unauthorized",
	"amqp:link:message-size-exceeded":        "too-large",
	"com.microsoft:entity-disabled":          "disabled",
	"com.microsoft:message-not-found":        "message-not-found",
	"com.microsoft:message-lock-lost":        "lock-lost",
	"com.microsoft:session-lock-lost":        "session-lock-lost",
	"com.microsoft:session-cannot-be-locked": "session-taken",
	"com.microsoft:timeout":                  "timeout",
	"amqp:resource-limit-exceeded":           "quota",
	"com.microsoft:entity-already-exists":    "exists",
}

var codes = map[sb.Code]string{
	sb.CodeLockLost:           "lock-lost",
	sb.CodeNotFound:           "not-found",
	sb.CodeTimeout:            "timeout",
	sb.CodeUnauthorizedAccess: "unauthorized",
	sb.CodeConnectionLost:     "connection-lost",
	sb.CodeClosed:             "closed",
}

var statuses = map[int]string{
	http.StatusBadRequest: "bad-request", http.StatusUnauthorized: "unauthorized", http.StatusNotFound: "not-found",
	http.StatusConflict: "exists", http.StatusPreconditionFailed: "modified",
}

func errorOf(err error) map[string]any {
	kind := fmt.Sprintf("%T", err)
	var known *amqp.Error
	var coded *sb.Error
	var response *azcore.ResponseError
	switch {
	case errors.Is(err, errNothing):
		kind = "nothing"
	case errors.Is(err, sb.ErrMessageTooLarge):
		kind = "too-large"
	case errors.As(err, &coded):
		kind = codes[coded.Code]
	case errors.As(err, &known):
		kind = conditions[known.Condition]
	case errors.As(err, &response):
		kind = statuses[response.StatusCode]
	case errors.Is(err, context.DeadlineExceeded):
		kind = "timeout"
	}
	if kind == "" {
		kind = "another"
	}
	return map[string]any{"kind": kind, "text": err.Error()}
}

// What was opened or received, by handle.
type shelf struct {
	sync.Mutex
	things map[string]any
	last   int
}

func (s *shelf) keep(thing any) string {
	s.Lock()
	defer s.Unlock()
	s.last++
	handle := fmt.Sprintf("h%d", s.last)
	s.things[handle] = thing
	return handle
}

func (s *shelf) clear() []any {
	s.Lock()
	defer s.Unlock()
	found := []any{}
	for _, thing := range s.things {
		found = append(found, thing)
	}
	s.things = map[string]any{}
	return found
}

func kept[T any](s *shelf, handle string) T {
	s.Lock()
	defer s.Unlock()
	thing, known := s.things[handle].(T)
	if !known {
		panic(fmt.Sprintf("there is no %T under %q", thing, handle))
	}
	return thing
}

var things = &shelf{things: map[string]any{}}

var speaking sync.Mutex

// Does it in the background, and says what came of it.
func answer(line []byte) {
	var told asked
	check(json.Unmarshal(line, &told))
	go func() {
		message := map[string]any{"id": told.ID}
		defer func() {
			if failure := recover(); failure != nil {
				err, known := failure.(error)
				if !known {
					err = fmt.Errorf("%v", failure)
				}
				message["error"] = errorOf(err)
			}
			speaking.Lock()
			defer speaking.Unlock()
			say(message)
		}()
		call, known := calls[told.Call]
		if !known {
			panic("this SDK has no " + told.Call)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Second)
		defer cancel()
		message["value"] = call(ctx, told)
	}()
}

// --- in and out ---

func messageFrom(said told) *sb.Message {
	message := &sb.Message{
		MessageID: said.ID, SessionID: said.Session, Subject: said.Subject, CorrelationID: said.Correlation,
		ContentType: said.ContentType, To: said.To, ReplyTo: said.ReplyTo, ReplyToSessionID: said.ReplySession,
		PartitionKey: said.Partition, ApplicationProperties: typed(said.Properties),
	}
	if said.Body != nil {
		message.Body = []byte(*said.Body)
	} else {
		message.Body = []byte(strings.Repeat("x", said.Size))
	}
	if said.TTL != nil {
		message.TimeToLive = ptr(time.Duration(*said.TTL) * time.Millisecond)
	}
	if said.At != nil {
		message.ScheduledEnqueueTime = ptr(time.UnixMilli(*said.At))
	}
	return message
}

// JSON knows only one kind of number.
func typed(properties map[string]any) map[string]any {
	for name, value := range properties {
		if number, is := value.(float64); is && number == float64(int64(number)) {
			properties[name] = int64(number)
		}
	}
	return properties
}

func messagesTo(messages []*sb.ReceivedMessage) []map[string]any {
	states := map[sb.MessageState]string{
		sb.MessageStateActive: "active", sb.MessageStateDeferred: "deferred", sb.MessageStateScheduled: "scheduled",
	}
	found := []map[string]any{}
	for _, message := range messages {
		// The SDK's count includes the current delivery.
		count := int64(message.DeliveryCount) - 1
		properties := message.ApplicationProperties
		if properties == nil {
			properties = map[string]any{}
		}
		found = append(found, map[string]any{
			"handle": things.keep(message), "body": string(message.Body), "properties": properties,
			"id": message.MessageID, "session": message.SessionID, "subject": message.Subject,
			"correlation": message.CorrelationID, "content_type": message.ContentType, "to": message.To,
			"reply_to": message.ReplyTo, "reply_session": message.ReplyToSessionID, "partition": message.PartitionKey,
			"sequence": message.SequenceNumber, "delivery_count": count, "state": states[message.State],
			"enqueued": millis(message.EnqueuedTime), "scheduled": millis(message.ScheduledEnqueueTime),
			"locked_until": millis(message.LockedUntil), "expires": millis(message.ExpiresAt),
			"reason": message.DeadLetterReason, "description": message.DeadLetterErrorDescription,
			"source": message.DeadLetterSource,
		})
	}
	return found
}

func millis(moment *time.Time) any {
	if moment == nil {
		return nil
	}
	return moment.UnixMilli()
}

type anyReceiver interface {
	receiver
	ReceiveDeferredMessages(context.Context, []int64, *sb.ReceiveDeferredMessagesOptions) ([]*sb.ReceivedMessage, error)
	CompleteMessage(context.Context, *sb.ReceivedMessage, *sb.CompleteMessageOptions) error
	AbandonMessage(context.Context, *sb.ReceivedMessage, *sb.AbandonMessageOptions) error
	DeferMessage(context.Context, *sb.ReceivedMessage, *sb.DeferMessageOptions) error
	DeadLetterMessage(context.Context, *sb.ReceivedMessage, *sb.DeadLetterOptions) error
}

type closer interface {
	Close(context.Context) error
}

func dialWebSocket(ctx context.Context, args sb.NewWebSocketConnArgs) (net.Conn, error) {
	config, err := websocket.NewConfig(args.Host, strings.Replace(args.Host, "wss://", "https://", 1))
	if err != nil {
		return nil, err
	}
	config.Protocol = []string{"amqp"}
	config.TlsConfig = &tls.Config{}
	connection, err := config.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	connection.PayloadType = websocket.BinaryFrame
	return connection, nil
}

// --- what it can be told ---

var calls = map[string]func(context.Context, asked) any{
	"reset": func(ctx context.Context, _ asked) any {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		for _, thing := range things.clear() {
			if client, is := thing.(*sb.Client); is {
				_ = client.Close(ctx)
			}
		}
		return nil
	},

	"close": func(ctx context.Context, a asked) any {
		check(kept[closer](things, a.Handle).Close(ctx))
		return nil
	},

	"open": func(_ context.Context, a asked) any {
		options := sb.ClientOptions{RetryOptions: sb.RetryOptions{MaxRetries: -1}}
		if a.Retries > 0 {
			options.RetryOptions = sb.RetryOptions{MaxRetries: a.Retries, RetryDelay: 200 * time.Millisecond}
		}
		if a.Transport == "websocket" {
			options.NewWebSocketConn = dialWebSocket
		}
		return things.keep(must(sb.NewClientFromConnectionString(a.Connection, &options)))
	},

	"sender": func(_ context.Context, a asked) any {
		return things.keep(must(kept[*sb.Client](things, a.Client).NewSender(a.Queue+a.Topic, nil)))
	},

	"send": func(ctx context.Context, a asked) any {
		sender := kept[*sb.Sender](things, a.Sender)
		if !a.Batch {
			for _, message := range a.Messages {
				check(sender.SendMessage(ctx, messageFrom(message), nil))
			}
			return nil
		}
		batch := must(sender.NewMessageBatch(ctx, nil))
		for _, message := range a.Messages {
			check(batch.AddMessage(messageFrom(message), nil))
		}
		check(sender.SendMessageBatch(ctx, batch, nil))
		return nil
	},

	"fill": func(ctx context.Context, a asked) any {
		sender := kept[*sb.Sender](things, a.Sender)
		batch := must(sender.NewMessageBatch(ctx, nil))
		for batch.AddMessage(messageFrom(told{Size: a.Size}), nil) == nil {
		}
		check(sender.SendMessageBatch(ctx, batch, nil))
		return batch.NumMessages()
	},

	"schedule": func(ctx context.Context, a asked) any {
		messages := each(a.Messages, messageFrom)
		return must(kept[*sb.Sender](things, a.Sender).ScheduleMessages(ctx, messages, time.UnixMilli(a.At), nil))
	},

	"cancel": func(ctx context.Context, a asked) any {
		check(kept[*sb.Sender](things, a.Sender).CancelScheduledMessages(ctx, a.Numbers, nil))
		return nil
	},

	"receiver": func(_ context.Context, a asked) any {
		parts := map[string]sb.SubQueue{"dead": sb.SubQueueDeadLetter, "transfer": sb.SubQueueTransfer}
		options := &sb.ReceiverOptions{SubQueue: parts[a.Part], ReceiveMode: mode(a)}
		client := kept[*sb.Client](things, a.Client)
		if a.Topic != "" {
			return things.keep(must(client.NewReceiverForSubscription(a.Topic, a.Subscription, options)))
		}
		return things.keep(must(client.NewReceiverForQueue(a.Queue, options)))
	},

	"accept": func(ctx context.Context, a asked) any {
		client, options := kept[*sb.Client](things, a.Client), &sb.SessionReceiverOptions{ReceiveMode: mode(a)}
		var found *sb.SessionReceiver
		switch {
		case a.Topic == "" && a.Session == nil:
			found = must(client.AcceptNextSessionForQueue(ctx, a.Queue, options))
		case a.Topic == "":
			found = must(client.AcceptSessionForQueue(ctx, a.Queue, *a.Session, options))
		case a.Session == nil:
			found = must(client.AcceptNextSessionForSubscription(ctx, a.Topic, a.Subscription, options))
		default:
			found = must(client.AcceptSessionForSubscription(ctx, a.Topic, a.Subscription, *a.Session, options))
		}
		return map[string]any{
			"handle": things.keep(found), "session": found.SessionID(), "until": found.LockedUntil().UnixMilli(),
		}
	},

	"receive": func(ctx context.Context, a asked) any {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(a.Wait*float64(time.Second)))
		defer cancel()
		messages, err := kept[anyReceiver](things, a.Receiver).ReceiveMessages(ctx, a.Count, nil)
		if !errors.Is(err, context.DeadlineExceeded) {
			check(err)
		}
		return messagesTo(messages)
	},

	"deferred": func(ctx context.Context, a asked) any {
		return messagesTo(must(kept[anyReceiver](things, a.Receiver).ReceiveDeferredMessages(ctx, a.Numbers, nil)))
	},

	"peek": func(ctx context.Context, a asked) any {
		options := &sb.PeekMessagesOptions{FromSequenceNumber: a.Start}
		return messagesTo(must(kept[anyReceiver](things, a.Receiver).PeekMessages(ctx, a.Count, options)))
	},

	"settle": func(ctx context.Context, a asked) any {
		from, message := kept[anyReceiver](things, a.Receiver), kept[*sb.ReceivedMessage](things, a.Message)
		properties := typed(a.Properties)
		switch a.How {
		case "complete":
			check(from.CompleteMessage(ctx, message, nil))
		case "abandon":
			check(from.AbandonMessage(ctx, message, &sb.AbandonMessageOptions{PropertiesToModify: properties}))
		case "defer":
			check(from.DeferMessage(ctx, message, &sb.DeferMessageOptions{PropertiesToModify: properties}))
		case "dead_letter":
			check(from.DeadLetterMessage(ctx, message, &sb.DeadLetterOptions{
				Reason: &a.Reason, ErrorDescription: &a.Description, PropertiesToModify: properties,
			}))
		}
		return nil
	},

	"renew": func(ctx context.Context, a asked) any {
		message := kept[*sb.ReceivedMessage](things, a.Message)
		check(kept[*sb.Receiver](things, a.Receiver).RenewMessageLock(ctx, message, nil))
		return millis(message.LockedUntil)
	},

	"state": func(ctx context.Context, a asked) any {
		state := must(kept[*sb.SessionReceiver](things, a.Receiver).GetSessionState(ctx, nil))
		if state == nil {
			return nil
		}
		return string(state)
	},

	"set_state": func(ctx context.Context, a asked) any {
		var state []byte
		if a.State != nil {
			state = []byte(*a.State)
		}
		check(kept[*sb.SessionReceiver](things, a.Receiver).SetSessionState(ctx, state, nil))
		return nil
	},

	"renew_session": func(ctx context.Context, a asked) any {
		found := kept[*sb.SessionReceiver](things, a.Receiver)
		check(found.RenewSessionLock(ctx, nil))
		return found.LockedUntil().UnixMilli()
	},

	"sessions": func(ctx context.Context, a asked) any {
		pager := kept[*sb.Client](things, a.Client).NewListSessionsForQueuePager(a.Queue, nil)
		found := []string{}
		for pager.More() {
			found = append(found, must(pager.NextPage(ctx)).Sessions...)
		}
		return found
	},

	"administer": func(_ context.Context, a asked) any {
		options := admin.ClientOptions{ClientOptions: azcore.ClientOptions{Retry: policy.RetryOptions{MaxRetries: -1}}}
		return things.keep(must(admin.NewClientFromConnectionString(a.Connection, &options)))
	},
	"create":    func(ctx context.Context, a asked) any { return administratorOf(a).create(ctx, a) },
	"get":       func(ctx context.Context, a asked) any { return administratorOf(a).get(ctx, a) },
	"update":    func(ctx context.Context, a asked) any { return administratorOf(a).update(ctx, a) },
	"delete":    func(ctx context.Context, a asked) any { return administratorOf(a).delete(ctx, a) },
	"names":     func(ctx context.Context, a asked) any { return administratorOf(a).names(ctx, a) },
	"counts":    func(ctx context.Context, a asked) any { return administratorOf(a).counts(ctx, a) },
	"namespace": func(ctx context.Context, a asked) any { return administratorOf(a).namespace(ctx) },
}

func mode(a asked) sb.ReceiveMode {
	if a.Deletes {
		return sb.ReceiveModeReceiveAndDelete
	}
	return sb.ReceiveModePeekLock
}

// Whether the line is such a thing to do.
func isCall(line []byte) bool {
	var heard struct{ Call string }
	check(json.Unmarshal(line, &heard))
	return heard.Call != ""
}

// Lines may hold a whole batch of messages.
func input() *bufio.Scanner {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 65_536), 16_777_216)
	return lines
}
