package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// The settings of an entity, or the filter and the action of a rule.
type settings struct {
	Lock              *int64              `json:"lock_ms"`
	MaxDelivery       *int32              `json:"max_delivery"`
	TTL               *int64              `json:"ttl_ms"`
	Sessions          *bool               `json:"sessions"`
	Duplicates        *bool               `json:"duplicates"`
	Window            *int64              `json:"window_ms"`
	DeadLetterExpired *bool               `json:"dead_letter_expired"`
	ForwardTo         *string             `json:"forward_to"`
	ForwardDeadTo     *string             `json:"forward_dead_to"`
	Status            *admin.EntityStatus `json:"status"`
	Metadata          *string             `json:"metadata"`

	Filter *filter `json:"filter,omitempty"`
	Action *string `json:"action,omitempty"`
}

type filter struct {
	SQL         *string      `json:"sql,omitempty"`
	Correlation *correlation `json:"correlation,omitempty"`
	True        bool         `json:"true,omitempty"`
	False       bool         `json:"false,omitempty"`
}

type correlation struct {
	Subject     *string        `json:"subject"`
	Correlation *string        `json:"correlation"`
	ID          *string        `json:"id"`
	Properties  map[string]any `json:"properties"`
}

type administrator struct{ *admin.Client }

func administratorOf(a asked) administrator {
	return administrator{kept[*admin.Client](things, a.Administrator)}
}

func (c administrator) create(ctx context.Context, a asked) any {
	switch a.Kind {
	case "queue":
		made := admin.QueueProperties{}
		a.Settings.ontoQueue(&made)
		options := &admin.CreateQueueOptions{Properties: &made}
		return fromQueue(must(c.CreateQueue(ctx, a.Path[0], options)).QueueProperties)
	case "topic":
		made := admin.TopicProperties{}
		a.Settings.ontoTopic(&made)
		options := &admin.CreateTopicOptions{Properties: &made}
		return fromTopic(must(c.CreateTopic(ctx, a.Path[0], options)).TopicProperties)
	case "subscription":
		made := admin.SubscriptionProperties{}
		a.Settings.ontoSubscription(&made)
		options := &admin.CreateSubscriptionOptions{Properties: &made}
		return fromSubscription(must(c.CreateSubscription(ctx, a.Path[0], a.Path[1], options)).SubscriptionProperties)
	default:
		options := &admin.CreateRuleOptions{Name: &a.Path[2], Filter: a.Settings.filter(), Action: a.Settings.action()}
		return fromRule(must(c.CreateRule(ctx, a.Path[0], a.Path[1], options)).RuleProperties)
	}
}

// What is not there is no error for this SDK.
var errNothing = errors.New("nothing was found")

func (c administrator) get(ctx context.Context, a asked) any {
	switch a.Kind {
	case "queue":
		if found := must(c.GetQueue(ctx, a.Path[0], nil)); found != nil {
			return fromQueue(found.QueueProperties)
		}
	case "topic":
		if found := must(c.GetTopic(ctx, a.Path[0], nil)); found != nil {
			return fromTopic(found.TopicProperties)
		}
	case "subscription":
		if found := must(c.GetSubscription(ctx, a.Path[0], a.Path[1], nil)); found != nil {
			return fromSubscription(found.SubscriptionProperties)
		}
	default:
		if found := must(c.GetRule(ctx, a.Path[0], a.Path[1], a.Path[2], nil)); found != nil {
			return fromRule(found.RuleProperties)
		}
	}
	panic(errNothing)
}

func (c administrator) update(ctx context.Context, a asked) any {
	switch a.Kind {
	case "queue":
		found := must(c.GetQueue(ctx, a.Path[0], nil)).QueueProperties
		a.Settings.ontoQueue(&found)
		return fromQueue(must(c.UpdateQueue(ctx, a.Path[0], found, nil)).QueueProperties)
	case "topic":
		found := must(c.GetTopic(ctx, a.Path[0], nil)).TopicProperties
		a.Settings.ontoTopic(&found)
		return fromTopic(must(c.UpdateTopic(ctx, a.Path[0], found, nil)).TopicProperties)
	case "subscription":
		found := must(c.GetSubscription(ctx, a.Path[0], a.Path[1], nil)).SubscriptionProperties
		a.Settings.ontoSubscription(&found)
		updated := must(c.UpdateSubscription(ctx, a.Path[0], a.Path[1], found, nil))
		return fromSubscription(updated.SubscriptionProperties)
	default:
		changed := admin.RuleProperties{Name: a.Path[2], Filter: a.Settings.filter(), Action: a.Settings.action()}
		return fromRule(must(c.UpdateRule(ctx, a.Path[0], a.Path[1], changed)).RuleProperties)
	}
}

func (c administrator) delete(ctx context.Context, a asked) any {
	switch a.Kind {
	case "queue":
		must(c.DeleteQueue(ctx, a.Path[0], nil))
	case "topic":
		must(c.DeleteTopic(ctx, a.Path[0], nil))
	case "subscription":
		must(c.DeleteSubscription(ctx, a.Path[0], a.Path[1], nil))
	default:
		must(c.DeleteRule(ctx, a.Path[0], a.Path[1], a.Path[2], nil))
	}
	return nil
}

func (c administrator) names(ctx context.Context, a asked) any {
	found := []string{}
	switch a.Kind {
	case "queue":
		for pager := c.NewListQueuesPager(nil); pager.More(); {
			for _, item := range must(pager.NextPage(ctx)).Queues {
				found = append(found, item.QueueName)
			}
		}
	case "topic":
		for pager := c.NewListTopicsPager(nil); pager.More(); {
			for _, item := range must(pager.NextPage(ctx)).Topics {
				found = append(found, item.TopicName)
			}
		}
	case "subscription":
		for pager := c.NewListSubscriptionsPager(a.Path[0], nil); pager.More(); {
			for _, item := range must(pager.NextPage(ctx)).Subscriptions {
				found = append(found, item.SubscriptionName)
			}
		}
	default:
		for pager := c.NewListRulesPager(a.Path[0], a.Path[1], nil); pager.More(); {
			found = append(found, ruleNames(must(pager.NextPage(ctx)))...)
		}
	}
	return found
}

func (c administrator) counts(ctx context.Context, a asked) any {
	switch a.Kind {
	case "queue":
		found := must(c.GetQueueRuntimeProperties(ctx, a.Path[0], nil))
		return map[string]any{
			"active": found.ActiveMessageCount, "dead": found.DeadLetterMessageCount,
			"scheduled": found.ScheduledMessageCount, "transfer_dead": found.TransferDeadLetterMessageCount,
			"total": found.TotalMessageCount, "size": found.SizeInBytes,
		}
	case "topic":
		found := must(c.GetTopicRuntimeProperties(ctx, a.Path[0], nil))
		return map[string]any{
			"scheduled": found.ScheduledMessageCount, "subscriptions": found.SubscriptionCount, "size": found.SizeInBytes,
		}
	default:
		found := must(c.GetSubscriptionRuntimeProperties(ctx, a.Path[0], a.Path[1], nil))
		return map[string]any{
			"active": found.ActiveMessageCount, "dead": found.DeadLetterMessageCount,
			"transfer_dead": found.TransferDeadLetterMessageCount, "total": found.TotalMessageCount,
		}
	}
}

func (c administrator) namespace(ctx context.Context) any {
	return must(c.GetNamespaceProperties(ctx, nil)).Name
}

// --- in and out ---

func (s settings) ontoQueue(made *admin.QueueProperties) {
	put(&made.LockDuration, duration(s.Lock))
	put(&made.MaxDeliveryCount, s.MaxDelivery)
	put(&made.DefaultMessageTimeToLive, duration(s.TTL))
	put(&made.RequiresSession, s.Sessions)
	put(&made.RequiresDuplicateDetection, s.Duplicates)
	put(&made.DuplicateDetectionHistoryTimeWindow, duration(s.Window))
	put(&made.DeadLetteringOnMessageExpiration, s.DeadLetterExpired)
	put(&made.ForwardTo, s.ForwardTo)
	put(&made.ForwardDeadLetteredMessagesTo, s.ForwardDeadTo)
	put(&made.Status, s.Status)
	put(&made.UserMetadata, s.Metadata)
}

func (s settings) ontoTopic(made *admin.TopicProperties) {
	put(&made.DefaultMessageTimeToLive, duration(s.TTL))
	put(&made.RequiresDuplicateDetection, s.Duplicates)
	put(&made.DuplicateDetectionHistoryTimeWindow, duration(s.Window))
	put(&made.Status, s.Status)
	put(&made.UserMetadata, s.Metadata)
}

func (s settings) ontoSubscription(made *admin.SubscriptionProperties) {
	put(&made.LockDuration, duration(s.Lock))
	put(&made.MaxDeliveryCount, s.MaxDelivery)
	put(&made.DefaultMessageTimeToLive, duration(s.TTL))
	put(&made.RequiresSession, s.Sessions)
	put(&made.DeadLetteringOnMessageExpiration, s.DeadLetterExpired)
	put(&made.ForwardTo, s.ForwardTo)
	put(&made.ForwardDeadLetteredMessagesTo, s.ForwardDeadTo)
	put(&made.Status, s.Status)
	put(&made.UserMetadata, s.Metadata)
}

func fromQueue(found admin.QueueProperties) settings {
	return settings{
		Lock: milliseconds(found.LockDuration), MaxDelivery: found.MaxDeliveryCount,
		TTL: milliseconds(found.DefaultMessageTimeToLive), Sessions: found.RequiresSession,
		Duplicates: found.RequiresDuplicateDetection, Window: milliseconds(found.DuplicateDetectionHistoryTimeWindow),
		DeadLetterExpired: found.DeadLetteringOnMessageExpiration, ForwardTo: found.ForwardTo,
		ForwardDeadTo: found.ForwardDeadLetteredMessagesTo, Status: found.Status, Metadata: found.UserMetadata,
	}
}

func fromTopic(found admin.TopicProperties) settings {
	return settings{
		TTL: milliseconds(found.DefaultMessageTimeToLive), Duplicates: found.RequiresDuplicateDetection,
		Window: milliseconds(found.DuplicateDetectionHistoryTimeWindow), Status: found.Status, Metadata: found.UserMetadata,
	}
}

func fromSubscription(found admin.SubscriptionProperties) settings {
	return settings{
		Lock: milliseconds(found.LockDuration), MaxDelivery: found.MaxDeliveryCount,
		TTL: milliseconds(found.DefaultMessageTimeToLive), Sessions: found.RequiresSession,
		DeadLetterExpired: found.DeadLetteringOnMessageExpiration, ForwardTo: found.ForwardTo,
		ForwardDeadTo: found.ForwardDeadLetteredMessagesTo, Status: found.Status, Metadata: found.UserMetadata,
	}
}

func (s settings) filter() admin.RuleFilter {
	switch {
	case s.Filter.SQL != nil:
		return &admin.SQLFilter{Expression: *s.Filter.SQL}
	case s.Filter.Correlation != nil:
		tested := s.Filter.Correlation
		return &admin.CorrelationFilter{
			Subject: tested.Subject, CorrelationID: tested.Correlation, MessageID: tested.ID,
			ApplicationProperties: typed(tested.Properties),
		}
	case s.Filter.True:
		return &admin.TrueFilter{}
	default:
		return &admin.FalseFilter{}
	}
}

func (s settings) action() admin.RuleAction {
	if s.Action == nil {
		return nil
	}
	return &admin.SQLAction{Expression: *s.Action}
}

func fromRule(rule admin.RuleProperties) map[string]any {
	shown := filter{}
	switch found := rule.Filter.(type) {
	case *admin.SQLFilter:
		shown.SQL = &found.Expression
	case *admin.CorrelationFilter:
		shown.Correlation = &correlation{
			Subject: found.Subject, Correlation: found.CorrelationID, ID: found.MessageID,
			Properties: found.ApplicationProperties,
		}
	case *admin.TrueFilter:
		shown.True = true
	case *admin.FalseFilter:
		shown.False = true
	}
	told := map[string]any{"name": rule.Name, "filter": shown, "action": nil}
	if action, is := rule.Action.(*admin.SQLAction); is {
		told["action"] = action.Expression
	}
	return told
}

func put[T any](place **T, value *T) {
	if value != nil {
		*place = value
	}
}

func duration(milliseconds *int64) *string {
	if milliseconds == nil {
		return nil
	}
	return ptr(fmt.Sprintf("PT%gS", float64(*milliseconds)/1000))
}

var parts = regexp.MustCompile(`^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$`)

func milliseconds(duration *string) *int64 {
	if duration == nil {
		return nil
	}
	seconds := 0.0
	for place, unit := range []float64{86_400, 3_600, 60, 1} {
		number, _ := strconv.ParseFloat(parts.FindStringSubmatch(*duration)[place+1], 64)
		seconds += number * unit
	}
	return ptr(int64(math.Round(seconds * 1000)))
}
