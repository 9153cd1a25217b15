package main

import (
	"bytes"
	"fmt"
	"time"

	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

const (
	queue    = "queue"
	sessions = "sessions"
	topic    = "topic"
)

var (
	letters  = &sb.ReceiverOptions{SubQueue: sb.SubQueueDeadLetter}
	transfer = &sb.ReceiverOptions{SubQueue: sb.SubQueueTransfer}
	deleting = &sb.ReceiverOptions{ReceiveMode: sb.ReceiveModeReceiveAndDelete}
)

func inSession(session string, body string) *sb.Message {
	return &sb.Message{SessionID: &session, Body: []byte(body)}
}

func withColour(colour string, body string) *sb.Message {
	return &sb.Message{ApplicationProperties: map[string]any{"colour": colour}, Body: []byte(body)}
}

// A subscription of the topic with only that rule.
func subscribe(w *world, client *admin.Client, name string, filter admin.RuleFilter, action admin.RuleAction) {
	must(client.CreateSubscription(w, topic, name, &admin.CreateSubscriptionOptions{
		Properties: &admin.SubscriptionProperties{
			DefaultRule: &admin.RuleProperties{Name: "only", Filter: filter, Action: action},
		},
	}))
}

func thereAndBack(w *world, client *sb.Client) {
	large := bytes.Repeat([]byte("0123456789"), 20_000)
	sent := &sb.Message{
		MessageID:             ptr("the-id"),
		CorrelationID:         ptr("the-correlation"),
		SessionID:             ptr("the-session"),
		Subject:               ptr("the-subject"),
		ContentType:           ptr("text/plain"),
		To:                    ptr("the-to"),
		ReplyTo:               ptr("the-reply-to"),
		ReplyToSessionID:      ptr("the-reply-session"),
		PartitionKey:          ptr("the-session"),
		ApplicationProperties: map[string]any{"text": "ü", "whole": int64(3), "real": 1.5, "yes": true},
		Body:                  []byte("hello"),
	}
	w.send(client, queue, sent, &sb.Message{Body: large})
	receiver := must(client.NewReceiverForQueue(queue, nil))
	messages := w.receive(receiver, 2)
	found := messages[0].Message()
	// The broker says how long the message lives; the sender has left it open.
	found.TimeToLive = nil
	same(found, sent)
	same(*messages[0].SequenceNumber, int64(1))
	same(messages[0].EnqueuedTime.UnixMilli(), w.now().UnixMilli())
	same(bytes.Equal(messages[1].Body, large), true)
	for _, message := range messages {
		check(receiver.CompleteMessage(w, message, nil))
	}
	same(w.peek(receiver), []string{})
}

var messaging = []scenario{
	{"a message is sent, received and completed", func(w *world) {
		thereAndBack(w, w.client())
	}},

	{"a message is sent and received over TLS", func(w *world) {
		thereAndBack(w, w.clientWithTLS())
	}},

	{"a batch arrives as single messages in order", func(w *world) {
		client := w.client()
		sender := must(client.NewSender(queue, nil))
		batch := must(sender.NewMessageBatch(w, nil))
		expected := []string{}
		for number := range 50 {
			expected = append(expected, fmt.Sprint(number))
			check(batch.AddMessage(text(expected[number]), nil))
		}
		check(sender.SendMessageBatch(w, batch, nil))
		receiver := must(client.NewReceiverForQueue(queue, deleting))
		same(bodies(w.receive(receiver, 50)), expected)
		same(sender.SendMessage(w, &sb.Message{Body: make([]byte, 300_000)}, nil), sb.ErrMessageTooLarge)
	}},

	{"messages are abandoned, dead-lettered and deferred", func(w *world) {
		client := w.client()
		w.send(client, queue, text("bad"), text("poison"), text("later"))
		receiver := must(client.NewReceiverForQueue(queue, nil))
		messages := w.receive(receiver, 3)
		why := &sb.DeadLetterOptions{
			Reason:             ptr("a reason"),
			ErrorDescription:   ptr("a description"),
			PropertiesToModify: map[string]any{"extra": int64(7)},
		}
		check(receiver.DeadLetterMessage(w, messages[0], why))
		check(receiver.DeferMessage(w, messages[2], nil))
		tried := &sb.AbandonMessageOptions{PropertiesToModify: map[string]any{"tried": true}}
		check(receiver.AbandonMessage(w, messages[1], tried))
		for range 2 {
			check(receiver.AbandonMessage(w, w.receive(receiver, 1)[0], tried))
		}
		deferred := must(receiver.ReceiveDeferredMessages(w, []int64{*messages[2].SequenceNumber}, nil))
		same(bodies(deferred), []string{"later"})
		same(deferred[0].State, sb.MessageStateDeferred)
		check(receiver.CompleteMessage(w, deferred[0], nil))
		same(w.peek(receiver), []string{})
		dead := must(client.NewReceiverForQueue(queue, letters))
		found := w.receive(dead, 2)
		same(bodies(found), []string{"bad", "poison"})
		same(*found[0].DeadLetterReason, "a reason")
		same(*found[0].DeadLetterErrorDescription, "a description")
		same(*found[0].DeadLetterSource, queue)
		same(found[0].ApplicationProperties["extra"], int64(7))
		same(*found[1].DeadLetterReason, "MaxDeliveryCountExceeded")
		same(found[1].ApplicationProperties["tried"], true)
		for _, message := range found {
			check(dead.CompleteMessage(w, message, nil))
		}
		same(w.peek(dead), []string{})
	}},

	{"a lock is held by renewing it and lost without", func(w *world) {
		client := w.client()
		w.send(client, queue, text("slow"))
		receiver := must(client.NewReceiverForQueue(queue, nil))
		message := w.receive(receiver, 1)[0]
		w.advance(40)
		check(receiver.RenewMessageLock(w, message, nil))
		same(message.LockedUntil.UnixMilli(), w.now().Add(time.Minute).UnixMilli())
		w.advance(40)
		same(w.peek(receiver), []string{"slow"})
		w.advance(21)
		refused(sb.CodeLockLost, receiver.CompleteMessage(w, message, nil))
		refused(sb.CodeLockLost, receiver.RenewMessageLock(w, message, nil))
		again := w.receive(receiver, 1)[0]
		// The SDK counts the first delivery too.
		same([]uint32{message.DeliveryCount, again.DeliveryCount}, []uint32{1, 2})
		check(receiver.CompleteMessage(w, again, nil))
	}},

	{"scheduled messages arrive when they are due and cancelled ones never", func(w *world) {
		client := w.client()
		sender := must(client.NewSender(queue, nil))
		due := w.now().Add(5 * time.Minute)
		numbers := must(sender.ScheduleMessages(w, []*sb.Message{text("kept"), text("cancelled")}, due, nil))
		check(sender.CancelScheduledMessages(w, numbers[1:], nil))
		receiver := must(client.NewReceiverForQueue(queue, nil))
		peeked := must(receiver.PeekMessages(w, 10, nil))
		same(bodies(peeked), []string{"kept"})
		same(peeked[0].State, sb.MessageStateScheduled)
		same(peeked[0].ScheduledEnqueueTime.UnixMilli(), due.UnixMilli())
		w.advance(300)
		message := w.receive(receiver, 1)[0]
		same(string(message.Body), "kept")
		same(message.EnqueuedTime.UnixMilli(), due.UnixMilli())
	}},

	{"a session is accepted, keeps its state and is given on", func(w *world) {
		client := w.client()
		w.send(client, sessions, inSession("s", "m1"), inSession("other", "m2"), inSession("s", "m3"))
		receiver := must(client.AcceptSessionForQueue(w, sessions, "s", nil))
		same(receiver.SessionID(), "s")
		same(receiver.LockedUntil().UnixMilli(), w.now().Add(time.Minute).UnixMilli())
		messages := w.receive(receiver, 2)
		same(bodies(messages), []string{"m1", "m3"})
		check(receiver.SetSessionState(w, []byte("step 3"), nil))
		w.advance(40)
		check(receiver.RenewSessionLock(w, nil))
		same(receiver.LockedUntil().UnixMilli(), w.now().Add(time.Minute).UnixMilli())
		w.advance(40)
		check(receiver.CompleteMessage(w, messages[0], nil))
		check(receiver.DeferMessage(w, messages[1], nil))
		next := must(client.AcceptNextSessionForQueue(w, sessions, nil))
		same(next.SessionID(), "other")
		check(next.CompleteMessage(w, w.receive(next, 1)[0], nil))
		check(receiver.Close(w))
		again := must(client.AcceptSessionForQueue(w, sessions, "s", nil))
		same(string(must(again.GetSessionState(w, nil))), "step 3")
		number := *messages[1].SequenceNumber
		same(bodies(must(again.ReceiveDeferredMessages(w, []int64{number}, nil))), []string{"m3"})
		w.send(client, sessions, inSession("other", "m4"))
		same(w.peek(again), []string{"m3"})
		check(again.SetSessionState(w, nil, nil))
		same(len(must(again.GetSessionState(w, nil))), 0)
	}},

	{"the sessions of a queue and of a subscription are listed", func(w *world) {
		administrator, client := w.admin(), w.client()
		must(administrator.CreateTopic(w, topic, nil))
		must(administrator.CreateSubscription(w, topic, "one", &admin.CreateSubscriptionOptions{
			Properties: &admin.SubscriptionProperties{RequiresSession: ptr(true)},
		}))
		for _, entity := range []string{sessions, topic} {
			w.send(client, entity, inSession("a", "m1"), inSession("b", "m2"), inSession("a", "m3"))
		}
		expected := [][]string{{"a", "b"}}
		same(pages(w, client.NewListSessionsForQueuePager(sessions, nil), sessionIDs), expected)
		same(pages(w, client.NewListSessionsForSubscriptionPager(topic, "one", nil), sessionIDs), expected)
	}},

	{"subscriptions get copies of messages that their filters match", func(w *world) {
		administrator, client := w.admin(), w.client()
		must(administrator.CreateTopic(w, topic, nil))
		must(administrator.CreateSubscription(w, topic, "all", nil))
		subscribe(w, administrator, "red", &admin.SQLFilter{Expression: "colour = 'red'"}, nil)
		subscribe(w, administrator, "order", &admin.CorrelationFilter{Subject: ptr("order")}, nil)
		subscribe(w, administrator, "none", &admin.FalseFilter{}, nil)
		action := &admin.SQLAction{Expression: "SET seen = colour + '!'; REMOVE colour"}
		subscribe(w, administrator, "marked", &admin.SQLFilter{Expression: "colour LIKE 'b%'"}, action)
		order := text("c")
		order.Subject = ptr("order")
		w.send(client, topic, withColour("red", "a"), withColour("blue", "b"), order)
		for name, expected := range map[string][]string{
			"all": {"a", "b", "c"}, "red": {"a"}, "order": {"c"}, "none": {}, "marked": {"b"},
		} {
			receiver := must(client.NewReceiverForSubscription(topic, name, nil))
			same(w.peek(receiver), expected)
		}
		receiver := must(client.NewReceiverForSubscription(topic, "marked", nil))
		message := w.receive(receiver, 1)[0]
		same(message.ApplicationProperties, map[string]any{"seen": "blue!", "RuleName": "only"})
		check(receiver.DeadLetterMessage(w, message, &sb.DeadLetterOptions{Reason: ptr("a reason")}))
		dead := w.receive(must(client.NewReceiverForSubscription(topic, "marked", letters)), 1)[0]
		same(*dead.DeadLetterReason, "a reason")
		same(*dead.DeadLetterSource, "topic/Subscriptions/marked")
		same(len(w.peek(must(client.NewReceiverForSubscription(topic, "all", nil)))), 3)
	}},

	{"a subscription has sessions and scheduled messages like a queue", func(w *world) {
		administrator, client := w.admin(), w.client()
		must(administrator.CreateTopic(w, topic, nil))
		must(administrator.CreateSubscription(w, topic, "one", &admin.CreateSubscriptionOptions{
			Properties: &admin.SubscriptionProperties{RequiresSession: ptr(true)},
		}))
		sender := must(client.NewSender(topic, nil))
		due := w.now().Add(time.Minute)
		later := []*sb.Message{inSession("s", "later"), inSession("s", "cancelled")}
		numbers := must(sender.ScheduleMessages(w, later, due, nil))
		check(sender.CancelScheduledMessages(w, numbers[1:], nil))
		w.send(client, topic, inSession("s", "now"))
		receiver := must(client.AcceptNextSessionForSubscription(w, topic, "one", nil))
		same(receiver.SessionID(), "s")
		check(receiver.CompleteMessage(w, w.receive(receiver, 1)[0], nil))
		check(receiver.SetSessionState(w, []byte("state"), nil))
		check(receiver.Close(w))
		w.advance(60)
		again := must(client.AcceptSessionForSubscription(w, topic, "one", "s", nil))
		same(string(must(again.GetSessionState(w, nil))), "state")
		same(bodies(w.receive(again, 1)), []string{"later"})
		same(w.peek(again), []string{"later"})
	}},

	{"messages are forwarded, and others are in the transfer dead-letter queue", func(w *world) {
		administrator, client := w.admin(), w.client()
		target := ptr(queue)
		source := &admin.CreateQueueOptions{Properties: &admin.QueueProperties{ForwardTo: target}}
		must(administrator.CreateQueue(w, "source", source))
		must(administrator.CreateTopic(w, topic, nil))
		must(administrator.CreateSubscription(w, topic, "one", &admin.CreateSubscriptionOptions{
			Properties: &admin.SubscriptionProperties{ForwardDeadLetteredMessagesTo: target},
		}))
		w.send(client, "source", text("forwarded"))
		receiver := must(client.NewReceiverForQueue(queue, deleting))
		same(bodies(w.receive(receiver, 1)), []string{"forwarded"})
		w.send(client, topic, text("bad"))
		failing := must(client.NewReceiverForSubscription(topic, "one", nil))
		check(failing.DeadLetterMessage(w, w.receive(failing, 1)[0], nil))
		letter := w.receive(receiver, 1)[0]
		same(string(letter.Body), "bad")
		same(*letter.DeadLetterSource, "topic/Subscriptions/one")
		must(administrator.DeleteQueue(w, queue, nil))
		w.send(client, "source", text("lost"))
		lost := w.receive(must(client.NewReceiverForQueue("source", transfer)), 1)[0]
		same(string(lost.Body), "lost")
		same(*lost.DeadLetterReason, "MessagingEntityNotFound")
	}},

	{"a message id that was seen within the window is dropped", func(w *world) {
		administrator, client := w.admin(), w.client()
		must(administrator.CreateQueue(w, "once", &admin.CreateQueueOptions{Properties: &admin.QueueProperties{
			RequiresDuplicateDetection:          ptr(true),
			DuplicateDetectionHistoryTimeWindow: ptr("PT1M"),
		}}))
		send := func(body string) {
			w.send(client, "once", &sb.Message{MessageID: ptr("the-id"), Body: []byte(body)})
		}
		send("first")
		send("again")
		receiver := must(client.NewReceiverForQueue("once", nil))
		same(w.peek(receiver), []string{"first"})
		w.advance(61)
		send("long after")
		same(w.peek(receiver), []string{"first", "long after"})
	}},

	{"an unknown entity is not found and a wrong key is unauthorized", func(w *world) {
		client := w.client()
		sender := must(client.NewSender("nowhere", nil))
		refused(sb.CodeNotFound, sender.SendMessage(w, text("a"), nil))
		receiver := must(client.NewReceiverForSubscription("nowhere", "nobody", nil))
		_, err := receiver.ReceiveMessages(w, 1, nil)
		refused(sb.CodeNotFound, err)
		must(w.admin().CreateTopic(w, topic, nil))
		receiver = must(client.NewReceiverForSubscription(topic, "nobody", nil))
		_, err = receiver.ReceiveMessages(w, 1, nil)
		notFound(err)
		guessed := w.connect(w.withKey("RootManageSharedAccessKey", "guessed"), sb.ClientOptions{})
		refused(sb.CodeUnauthorizedAccess, must(guessed.NewSender(queue, nil)).SendMessage(w, text("a"), nil))
	}},
}

func sessionIDs(page sb.ListSessionsResponse) []string {
	return page.Sessions
}
