package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"gpusteward/health/notifier"
)

// job is that of the agents in Prometheus. The shipped rules select it.
const job = "gpusteward"

// drain is the order to release the driver and, on request, to silence the host's
// alerts. A silence takes place meanwhile: neither waits for the other, and none
// fails because of the other.
func (n *observedHost) drain(ctx context.Context, arguments url.Values) (string, error) {
	silenced := make(chan string, 1)
	if given := arguments.Get("silence"); arguments.Has("silence") {
		d, err := time.ParseDuration(given)
		if err != nil || d < notifier.ShortestSilence || d > notifier.LongestSilence {
			return "", fmt.Errorf("--silence=%s is not a duration from 1m to 720h, such as 2h", given)
		}
		go func() { silenced <- n.judgement.notifier.Silence(ctx, n.maintenance(), d) }()
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

// maintenance returns how alerts name the host.
func (n *observedHost) maintenance() notifier.Maintenance {
	w := n.web.Load()
	m := notifier.Maintenance{Node: n.name, Labels: w.labels, Job: job, Instances: []string{n.name}}
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
