package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The node condition, with the names of npd-gpusteward.json.
const (
	conditionType   = "GPUUnhealthy"
	reasonHealthy   = "GPUsAreHealthy"
	reasonUnhealthy = "GPUCritical"
	reasonUnknown   = "GPUsAreUnknown"
	messageHealthy  = "no GPU of the node is critical"
	heartbeat       = 5 * time.Minute // as node-problem-detector
	mostOften       = time.Minute     // for a message that changes all the time
	longest         = 256             // bytes of a message
)

// A reporter keeps the node's condition and the taints of its devices in accord with the agent's
// verdict. It has no state that a restart would lose, except for the time since which something is
// healthy: a restart delays what it lifts.
type reporter struct {
	node   string
	hold   time.Duration
	ask    func(context.Context) (verdict, error)
	api    *api
	log    *slog.Logger
	taints *taints // nil: none

	since map[string]time.Time // when the node, "", or a GPU was first found healthy
}

// health reports until ctx ends.
func health(ctx context.Context, flags *flag.FlagSet, args []string, log *slog.Logger) error {
	node := flags.String("node", os.Getenv("NODE_NAME"), "`name` of the node; default: $NODE_NAME")
	socket := flags.String("socket", "/run/gpusteward/agent/control.sock", "the agent's control `socket`")
	interval := flags.Duration("interval", 15*time.Second, "time between reports, 10s to 5m")
	hold := flags.Duration("hold", time.Minute, "time for which all must be well before a condition or a taint is lifted")
	effect := flags.String("taint", "", "also taint unhealthy devices of NVIDIA's DRA driver, with the `effect` "+
		"NoSchedule or NoExecute")
	if err := parse(flags, args); err != nil {
		return err
	}
	switch {
	case *node == "":
		return errors.New("--node: no name of the node is given")
	case *interval < 10*time.Second || *interval > heartbeat:
		return fmt.Errorf("--interval: %v is not between 10s and 5m", *interval)
	case *hold < 0:
		return fmt.Errorf("--hold: %v is negative", *hold)
	case *effect != "" && *effect != "NoSchedule" && *effect != "NoExecute":
		return fmt.Errorf("--taint: %q is not NoSchedule or NoExecute", *effect)
	}
	api, err := cluster()
	if err != nil {
		return err
	}
	r := &reporter{node: *node, hold: *hold, ask: agent(*socket), api: api, log: log}
	if *effect != "" {
		r.taints = &taints{node: *node, effect: *effect, api: api, log: log}
	}
	each(ctx, *interval, log, "report the health of the GPUs", func(ctx context.Context) error {
		return r.report(ctx, time.Now())
	})
	return nil
}

// report asks the agent once, and changes what differs from its verdict.
func (r *reporter) report(ctx context.Context, now time.Time) error {
	v, asked := r.ask(ctx)
	if asked == nil {
		asked = v.usable(r.node, now)
	}
	if asked != nil {
		// Taints stay as they are: unknown is neither well nor ill.
		r.since = nil
		return errors.Join(asked, r.condition(ctx, corev1.ConditionUnknown, reasonUnknown, asked.Error(), now))
	}
	seen := map[string]state{"": stateOf(v.Status)}
	for _, g := range v.GPUs {
		seen[g.UUID] = stateOf(g.Status)
	}
	since := map[string]time.Time{}
	for of, s := range seen {
		if s == healthy {
			since[of] = now
			if first, ok := r.since[of]; ok {
				since[of] = first
			}
		}
	}
	r.since = since
	var err error
	switch seen[""] {
	case unhealthy:
		err = r.condition(ctx, corev1.ConditionTrue, reasonUnhealthy, v.message(), now)
	case healthy:
		err = r.condition(ctx, corev1.ConditionFalse, reasonHealthy, messageHealthy, now)
	default:
		err = r.condition(ctx, corev1.ConditionUnknown, reasonUnknown, v.Reason, now)
	}
	if r.taints != nil {
		err = errors.Join(err, r.taints.keep(ctx, func(uuid string) state {
			s, ok := seen[uuid]
			switch {
			case !ok && seen[""] != unknown: // without a driver the agent knows no GPU
				return forgotten
			case s == healthy && !r.held(uuid, now):
				return unknown
			}
			return s
		}))
	}
	return err
}

// held reports whether the node, "", or a GPU has been healthy for long enough.
func (r *reporter) held(of string, now time.Time) bool { return now.Sub(r.since[of]) >= r.hold }

// message returns the worst finding about the node or a GPU, without control characters.
func (v verdict) message() string {
	text := "a GPU of the node is critical"
	for _, f := range v.Findings {
		if !f.Shadow && f.Entity.Workload == "" && f.Entity.Tenant == "" {
			text = f.Check + ": " + f.Message
			break
		}
	}
	text = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text), "?")
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest-3], "") + "..."
	}
	return text
}

// condition sets the node's condition if it changes, or if its heartbeat is due. A condition that was
// True becomes False only after the hold.
func (r *reporter) condition(ctx context.Context, status corev1.ConditionStatus, reason, message string,
	now time.Time) error {
	path := "/api/v1/nodes/" + url.PathEscape(r.node)
	var node corev1.Node
	if err := r.api.get(ctx, path, nil, &node); err != nil {
		return err
	}
	if r.taints != nil {
		r.taints.owner = node.UID
	}
	c := corev1.NodeCondition{Type: conditionType, Status: status, Reason: reason, Message: message,
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now)}
	for _, old := range node.Status.Conditions {
		if old.Type != conditionType {
			continue
		}
		if status == corev1.ConditionFalse && old.Status == corev1.ConditionTrue && !r.held("", now) {
			c.Status, c.Reason, c.Message = old.Status, old.Reason, old.Message
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		wait := heartbeat
		if old.Message != c.Message {
			wait = mostOften
		}
		if old.Status == c.Status && old.Reason == c.Reason && now.Sub(old.LastHeartbeatTime.Time) < wait {
			return nil
		}
	}
	// Conditions are merged by their type: those of others stay.
	patch := map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{c}}}
	if err := r.api.call(ctx, http.MethodPatch, path+"/status", "application/strategic-merge-patch+json", patch,
		nil); err != nil {
		return err
	}
	r.log.Info("set the node's condition", "condition", conditionType, "status", c.Status, "reason", c.Reason,
		"message", c.Message)
	return nil
}
