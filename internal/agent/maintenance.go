package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/health/incident"
	"gpusteward/health/notifier"
)

// job is that of the agents in Prometheus. The shipped rules select it, and their alerts have it.
const job = "gpusteward"

// drain is the order to release the driver and, on request, to silence the alerts of
// the host or of one of its GPUs. A silence takes place meanwhile: neither waits for the
// other, and none fails because of the other.
func (n *observedHost) drain(ctx context.Context, arguments url.Values) (string, error) {
	silenced, of := make(chan string, 1), n.maintenance()
	if arguments.Has("gpu") {
		var err error
		if of.GPU, err = n.named(arguments.Get("gpu")); err != nil {
			return "", fmt.Errorf("--gpu: %w", err)
		}
		if !arguments.Has("silence") {
			return "", errors.New("--gpu needs --silence: drain releases every GPU, and only a silence can be of one")
		}
	}
	if given := arguments.Get("silence"); arguments.Has("silence") {
		d, err := time.ParseDuration(given)
		if err != nil || d < notifier.ShortestSilence || d > notifier.LongestSilence {
			return "", fmt.Errorf("--silence=%s is not a duration from 1m to 720h, such as 2h", given)
		}
		go func() { silenced <- n.judgement.notifier.Silence(ctx, of, d) }()
	} else {
		silenced <- ""
	}
	err := n.host.Drain(ctx)
	said := <-silenced
	if err != nil && said != "" {
		err = fmt.Errorf("%w\n%s", err, said)
	}
	return said, err
}

// resume is the order to open the driver again, and to end the host's silence.
func (n *observedHost) resume(ctx context.Context, _ url.Values) (string, error) {
	ended := make(chan string, 1)
	go func() { ended <- n.judgement.notifier.EndSilence(ctx, n.maintenance()) }()
	err := n.host.Resume(ctx)
	return <-ended, err
}

// named returns the GPU with an index or a UUID.
func (n *observedHost) named(gpu string) (incident.Entity, error) {
	var known []string
	for _, id := range n.host.GPUs() {
		e := incident.Entity{GPU: strconv.Itoa(id.Index), UUID: id.UUID}
		if gpu == e.GPU || gpu == e.UUID {
			return e, nil
		}
		known = append(known, e.GPU)
	}
	return incident.Entity{}, fmt.Errorf("this host has no GPU %q; its GPUs: %s", gpu, cmp.Or(strings.Join(known, ", "), "none"))
}

// maintenance returns how alerts name the host.
func (n *observedHost) maintenance() notifier.Maintenance {
	w := n.web.Load()
	m := notifier.Maintenance{Node: n.name, Job: w.labels["job"], Instances: []string{n.name, w.labels["instance"]},
		Labels: maps.Clone(w.labels)}
	delete(m.Labels, "job")
	delete(m.Labels, "instance")
	if short, _, long := strings.Cut(n.name, "."); long {
		m.Instances = append(m.Instances, short)
	}
	if u, err := url.Parse(w.external); err == nil && u.Hostname() != "" {
		m.Instances = append(m.Instances, u.Hostname())
	}
	if n.real {
		addresses, _ := net.InterfaceAddrs() // without them the names are left
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
				m.Instances = append(m.Instances, strings.TrimSuffix(netip.AddrPortFrom(p.Addr(), 0).String(), ":0"))
			}
		}
	}
	slices.Sort(m.Instances)
	m.Instances = slices.Compact(m.Instances)
	return m
}
