package notifier

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/health"
)

// TestXIDsArriveWithinASecond measures the whole way of an XID: from the
// kernel's line, through the judgement, to a real Alertmanager's API. Four
// monitors with fifty GPUs each share a notifier.
func TestXIDsArriveWithinASecond(t *testing.T) {
	const hosts, gpus, rounds = 4, 50, 5
	before := stolen(t)
	const apart = 5*time.Second + 500*time.Millisecond // the same XID before that is the same incident
	am := startAlertmanager(t, configured(t, "http://127.0.0.1:5001", "http://127.0.0.1:1"))
	n := runNotifier(t, defaultTimings, am.url.String())
	var all []*logged
	for i := range hosts {
		all = append(all, logHost(t, fmt.Sprint("host", i), gpus, n.Tell))
	}
	query := "?filter=" + url.QueryEscape(`alertname="GPULost"`)
	waiting := map[string]time.Time{}
	var delays []time.Duration
	// look takes from waiting the GPUs whose alert the API has.
	look := func() bool {
		for _, a := range am.alerts(query) {
			key := a.Labels["node"] + "/" + a.Labels["gpu"]
			if at, waits := waiting[key]; waits {
				delays = append(delays, time.Since(at))
				delete(waiting, key)
			}
		}
		return len(waiting) == 0
	}
	sequence := uint64(0)
	for range rounds {
		for i := range gpus {
			for _, h := range all {
				sequence++
				text := fmt.Sprintf("NVRM: Xid (PCI:0000:%02x:00): 79, pid=1, name=a, GPU has fallen off the bus.", i)
				waiting[fmt.Sprint(h.node, "/", i)] = time.Now()
				h.kernel <- host.Record{Priority: 4, Sequence: sequence, Time: time.Now(), Text: text}
			}
			look()
		}
		next := time.NewTimer(apart)
		eventually(t, "all GPUs that were lost are in the API", 10*time.Second, look)
		for _, h := range all {
			for i := range gpus {
				if err := h.Ack(t.Context(), "gpu_lost", health.Entity{GPU: strconv.Itoa(i)}, "the test"); err != nil {
					t.Fatal(err)
				}
			}
		}
		eventually(t, "the alerts are resolved", 10*time.Second, func() bool { return len(am.alerts(query)) == 0 })
		<-next.C
	}
	slices.Sort(delays)
	p50, p99 := delays[len(delays)/2], delays[len(delays)*99/100]
	t.Logf("%d XIDs: p50 %v, p99 %v, most %v", len(delays), p50, p99, delays[len(delays)-1])
	limit := time.Second + stolen(t) - before
	if len(delays) != hosts*gpus*rounds || p99 > limit {
		t.Errorf("p99 of %d is %v; want %d, and less than %v", len(delays), p99, hosts*gpus*rounds, limit)
	}
}

// stolen returns the processor time that a hypervisor has taken since boot:
// what is late by no more was held up by nobody here.
func stolen(t *testing.T) time.Duration {
	t.Helper()
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		t.Fatal(err)
	}
	stat, err := proc.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(stat.CPUTotal.Steal * float64(time.Second))
}

// logged is a monitor of a host whose kernel logs what the test says.
type logged struct {
	*health.Monitor
	node   string
	kernel chan host.Record
}

func logHost(t *testing.T, node string, gpus int, tell func([]health.Alert)) *logged {
	t.Helper()
	var samples []collectors.Sample
	for i := range gpus {
		id := strconv.Itoa(i)
		samples = append(samples, collectors.Sample{Metric: collectors.Up, Labels: []string{id, "GPU-" + id}, Value: 1},
			collectors.Sample{Metric: collectors.PCIDevicePresent, Labels: []string{id, "GPU-" + id, fmt.Sprintf("0000:%02x:00.0", i), "gpu"}, Value: 1})
	}
	h := &logged{node: node, kernel: make(chan host.Record)}
	h.Monitor = health.NewMonitor(health.Options{
		Samples: func() []collectors.Sample { return slices.Clone(samples) },
		Kernel: func(ctx context.Context, each func(host.Record)) error {
			for {
				select {
				case r := <-h.kernel:
					each(r)
				case <-ctx.Done():
					return nil
				}
			}
		},
		Tell: tell, Boot: "b", Node: node, Log: slog.New(slog.DiscardHandler),
	}, health.Settings{})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return h
}
