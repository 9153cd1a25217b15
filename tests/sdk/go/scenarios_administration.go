package main

import (
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	sb "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

const forEver = "P10675199DT2H48M5.4775807S"

func makeSubscription(w *world, client *admin.Client) {
	must(client.CreateTopic(w, topic, nil))
	must(client.CreateSubscription(w, topic, "one", nil))
}

func createRule(w *world, client *admin.Client, name string, filter admin.RuleFilter, action admin.RuleAction) error {
	found, err := client.CreateRule(w, topic, "one", &admin.CreateRuleOptions{Name: &name, Filter: filter, Action: action})
	if err == nil {
		same(found.RuleProperties, admin.RuleProperties{Name: name, Filter: filter, Action: action})
	}
	return err
}

func ruleNames(page admin.ListRulesResponse) []string {
	return each(page.Rules, func(rule admin.RuleProperties) string { return rule.Name })
}

var administration = []scenario{
	{"a queue is created, updated and deleted", func(w *world) {
		client := w.admin()
		missing := must(client.GetQueue(w, "folder/q", nil))
		same(missing == nil, true)
		created := must(client.CreateQueue(w, "folder/q", nil))
		same(created.QueueName, "folder/q")
		expected := admin.QueueProperties{
			LockDuration:                        ptr("PT1M"),
			MaxSizeInMegabytes:                  ptr(int32(1024)),
			RequiresDuplicateDetection:          ptr(false),
			RequiresSession:                     ptr(false),
			DefaultMessageTimeToLive:            ptr(forEver),
			DeadLetteringOnMessageExpiration:    ptr(false),
			DuplicateDetectionHistoryTimeWindow: ptr("PT10M"),
			MaxDeliveryCount:                    ptr(int32(10)),
			EnableBatchedOperations:             ptr(true),
			Status:                              ptr(admin.EntityStatusActive),
			AutoDeleteOnIdle:                    ptr(forEver),
			EnablePartitioning:                  ptr(false),
			MaxMessageSizeInKilobytes:           ptr(int64(256)),
		}
		same(created.QueueProperties, expected)
		same(must(client.GetQueue(w, "folder/q", nil)).QueueProperties, expected)
		changed := expected
		changed.LockDuration = ptr("PT30S")
		changed.MaxDeliveryCount = ptr(int32(3))
		changed.DefaultMessageTimeToLive = ptr("P1DT2H")
		changed.UserMetadata = ptr("<notes> & more")
		changed.Status = ptr(admin.EntityStatusSendDisabled)
		changed.ForwardTo = ptr(queue)
		updated := must(client.UpdateQueue(w, "folder/q", changed, nil)).QueueProperties
		changed.ForwardTo = updated.ForwardTo
		same(updated, changed)
		same(*updated.ForwardTo, "https://"+w.host()+"/queue")
		same(must(client.GetQueue(w, "folder/q", nil)).QueueProperties, updated)
		updated.RequiresSession = ptr(true)
		_, err := client.UpdateQueue(w, "folder/q", updated, nil)
		restRefused(400, "RequiresSession", err)
		must(client.DeleteQueue(w, "folder/q", nil))
		same(must(client.GetQueue(w, "folder/q", nil)) == nil, true)
	}},

	{"a topic and a subscription are created, updated and deleted", func(w *world) {
		client := w.admin()
		created := must(client.CreateTopic(w, topic, &admin.CreateTopicOptions{Properties: &admin.TopicProperties{
			RequiresDuplicateDetection: ptr(true),
		}}))
		properties := created.TopicProperties
		same(created.TopicName, topic)
		same(*properties.RequiresDuplicateDetection, true)
		properties.DefaultMessageTimeToLive = ptr("PT1H")
		same(must(client.UpdateTopic(w, topic, properties, nil)).TopicProperties, properties)
		same(must(client.GetTopic(w, topic, nil)).TopicProperties, properties)

		one := must(client.CreateSubscription(w, topic, "one", nil))
		same([]string{one.TopicName, one.SubscriptionName}, []string{topic, "one"})
		expected := admin.SubscriptionProperties{
			LockDuration:                                    ptr("PT1M"),
			RequiresSession:                                 ptr(false),
			DefaultMessageTimeToLive:                        ptr(forEver),
			DeadLetteringOnMessageExpiration:                ptr(false),
			EnableDeadLetteringOnFilterEvaluationExceptions: ptr(true),
			MaxDeliveryCount:                                ptr(int32(10)),
			Status:                                          ptr(admin.EntityStatusActive),
			AutoDeleteOnIdle:                                ptr(forEver),
			EnableBatchedOperations:                         ptr(true),
		}
		same(one.SubscriptionProperties, expected)
		expected.MaxDeliveryCount = ptr(int32(2))
		expected.UserMetadata = ptr("notes")
		same(must(client.UpdateSubscription(w, topic, "one", expected, nil)).SubscriptionProperties, expected)
		same(must(client.GetSubscription(w, topic, "one", nil)).SubscriptionProperties, expected)

		must(client.DeleteSubscription(w, topic, "one", nil))
		same(must(client.GetSubscription(w, topic, "one", nil)) == nil, true)
		must(client.DeleteTopic(w, topic, nil))
		same(must(client.GetTopic(w, topic, nil)) == nil, true)
	}},

	{"rules are created, updated, listed and deleted", func(w *world) {
		client := w.admin()
		makeSubscription(w, client)
		same(pages(w, client.NewListRulesPager(topic, "one", nil), ruleNames), [][]string{{"$Default"}})
		same(must(client.GetRule(w, topic, "one", "$Default", nil)).Filter, &admin.TrueFilter{})
		values := map[string]any{
			"text": "<t> & 'q'", "whole": int64(3), "real": 1.5, "yes": true,
			"moment": time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		}
		check(createRule(w, client, "full", &admin.CorrelationFilter{
			ApplicationProperties: values,
			ContentType:           ptr("ct"),
			CorrelationID:         ptr("c"),
			MessageID:             ptr("m"),
			ReplyTo:               ptr("r"),
			ReplyToSessionID:      ptr("rs"),
			SessionID:             ptr("s"),
			Subject:               ptr("su"),
			To:                    ptr("t"),
		}, nil))
		check(createRule(w, client, "sql", &admin.SQLFilter{
			Expression: "weight > @low", Parameters: map[string]any{"@low": int64(10)},
		}, &admin.SQLAction{
			Expression: "SET mark = @m; REMOVE weight", Parameters: map[string]any{"@m": "new"},
		}))
		check(createRule(w, client, "none", &admin.FalseFilter{}, nil))
		changed := admin.RuleProperties{Name: "full", Filter: &admin.SQLFilter{Expression: "colour = 'red'"}}
		same(must(client.UpdateRule(w, topic, "one", changed)).RuleProperties, changed)
		same(must(client.GetRule(w, topic, "one", "full", nil)).RuleProperties, changed)
		must(client.DeleteRule(w, topic, "one", "$Default", nil))
		same(must(client.GetRule(w, topic, "one", "$Default", nil)) == nil, true)
		same(pages(w, client.NewListRulesPager(topic, "one", nil), ruleNames), [][]string{{"full", "sql", "none"}})

		heavy := text("heavy")
		heavy.ApplicationProperties = map[string]any{"weight": int64(11)}
		w.send(w.client(), topic, heavy, text("light"))
		messages := w.receive(must(w.client().NewReceiverForSubscription(topic, "one", deleting)), 1)
		same(messages[0].ApplicationProperties, map[string]any{"mark": "new", "RuleName": "sql"})
	}},

	{"more than a hundred queues are listed in pages", func(w *world) {
		client := w.admin()
		expected := []string{}
		for number := range 105 {
			expected = append(expected, fmt.Sprintf("n%03d", number))
			must(client.CreateQueue(w, expected[number], nil))
		}
		expected = append(expected, queue, sessions)
		names := func(page admin.ListQueuesResponse) []string {
			return each(page.Queues, func(item admin.QueueItem) string { return item.QueueName })
		}
		same(pages(w, client.NewListQueuesPager(nil), names), [][]string{expected[:100], expected[100:]})
		small := client.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: 60})
		same(pages(w, small, names), [][]string{expected[:60], expected[60:]})
	}},

	{"topics and subscriptions are listed in pages", func(w *world) {
		client := w.admin()
		makeSubscription(w, client)
		expected := []string{"a", "b", "c", "one"}
		for _, name := range expected[:3] {
			must(client.CreateTopic(w, name, nil))
			must(client.CreateSubscription(w, topic, name, nil))
		}
		topics := func(page admin.ListTopicsResponse) []string {
			return each(page.Topics, func(item admin.TopicItem) string { return item.TopicName })
		}
		pager := client.NewListTopicsPager(&admin.ListTopicsOptions{MaxPageSize: 3})
		same(pages(w, pager, topics), [][]string{{"a", "b", "c"}, {topic}})
		subscriptions := func(page admin.ListSubscriptionsResponse) []string {
			return each(page.Subscriptions, func(item admin.SubscriptionPropertiesItem) string {
				return item.SubscriptionName
			})
		}
		paged := client.NewListSubscriptionsPager(topic, &admin.ListSubscriptionsOptions{MaxPageSize: 3})
		same(pages(w, paged, subscriptions), [][]string{expected[:3], expected[3:]})
	}},

	{"runtime properties have the counts", func(w *world) {
		administrator, client := w.admin(), w.client()
		start := w.now()
		makeSubscription(w, administrator)
		must(administrator.CreateQueue(w, "q", nil))
		for _, entity := range []string{"q", topic} {
			w.send(client, entity, text("a"), text("b"), text("dead"))
			sender := must(client.NewSender(entity, nil))
			must(sender.ScheduleMessages(w, []*sb.Message{text("later")}, start.Add(time.Hour), nil))
		}
		for _, receiver := range []*sb.Receiver{
			must(client.NewReceiverForQueue("q", nil)), must(client.NewReceiverForSubscription(topic, "one", nil)),
		} {
			check(receiver.DeadLetterMessage(w, w.receive(receiver, 3)[2], nil))
		}
		found := must(administrator.GetQueueRuntimeProperties(w, "q", nil)).QueueRuntimeProperties
		same(found.SizeInBytes > 0, true)
		same(found.CreatedAt.UnixMilli(), start.UnixMilli())
		same(found.UpdatedAt.UnixMilli(), start.UnixMilli())
		same(found.AccessedAt.UnixMilli(), start.UnixMilli())
		same(found, admin.QueueRuntimeProperties{
			SizeInBytes: found.SizeInBytes, CreatedAt: found.CreatedAt, UpdatedAt: found.UpdatedAt,
			AccessedAt: found.AccessedAt, TotalMessageCount: 4, ActiveMessageCount: 2, DeadLetterMessageCount: 1,
			ScheduledMessageCount: 1,
		})
		one := must(administrator.GetSubscriptionRuntimeProperties(w, topic, "one", nil)).SubscriptionRuntimeProperties
		same(one.CreatedAt.UnixMilli(), start.UnixMilli())
		same(one, admin.SubscriptionRuntimeProperties{
			CreatedAt: one.CreatedAt, UpdatedAt: one.UpdatedAt, AccessedAt: one.AccessedAt, TotalMessageCount: 3,
			ActiveMessageCount: 2, DeadLetterMessageCount: 1,
		})
		whole := must(administrator.GetTopicRuntimeProperties(w, topic, nil))
		same(whole.SubscriptionCount, int32(1))
		same(whole.ScheduledMessageCount, int32(1))
		same(whole.SizeInBytes > 0, true)
	}},

	{"the namespace has its properties", func(w *world) {
		found := must(w.admin().GetNamespaceProperties(w, nil))
		same([]string{found.Name, found.SKU}, []string{"sbemulatorns", "Standard"})
		same(found.CreatedTime.IsZero(), false)
	}},

	{"errors of administration have the status of the service", func(w *world) {
		client := w.admin()
		makeSubscription(w, client)
		_, err := client.CreateQueue(w, queue, nil)
		restRefused(409, "SubCode=40900", err)
		_, err = client.DeleteQueue(w, "nowhere", nil)
		restRefused(404, "nowhere", err)
		_, err = client.CreateSubscription(w, "nowhere", "one", nil)
		restRefused(404, "nowhere", err)
		wrong := &admin.CreateQueueOptions{Properties: &admin.QueueProperties{LockDuration: ptr("PT10M")}}
		_, err = client.CreateQueue(w, "q", wrong)
		restRefused(400, "LockDuration", err)
		restRefused(400, "a = = 1", createRule(w, client, "r", &admin.SQLFilter{Expression: "a = = 1"}, nil))
		restRefused(409, "$Default", createRule(w, client, "$Default", &admin.TrueFilter{}, nil))
		guessed := w.adminWith(azcore.ClientOptions{}, w.withKey("RootManageSharedAccessKey", "guessed"))
		_, err = guessed.GetQueue(w, queue, nil)
		restRefused(401, "", err)
	}},

	{"older versions of the interface are understood", func(w *world) {
		for version, size := range map[string]*int64{"2021-05": ptr(int64(256)), "2017-04": nil} {
			client := w.adminWith(azcore.ClientOptions{APIVersion: version}, w.brokers["plain"])
			found := must(client.CreateQueue(w, "q-"+version, nil))
			same(found.MaxMessageSizeInKilobytes, size)
		}
	}},

	{"administration works without TLS where a policy of the client says so", func(w *world) {
		// The SDK has no setting for it.
		options := azcore.ClientOptions{PerCallPolicies: []policy.Policy{withoutTLS{}}}
		client := w.adminWith(options, w.brokers["plain"])
		makeSubscription(w, client)
		check(createRule(w, client, "r", &admin.CorrelationFilter{Subject: ptr("s")}, nil))
		same(pages(w, client.NewListRulesPager(topic, "one", nil), ruleNames), [][]string{{"$Default", "r"}})
		must(client.DeleteTopic(w, topic, nil))
	}},
}
