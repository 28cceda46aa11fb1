package notifier

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"testing"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/collectors/links"
	"gpusteward/health"
	"gpusteward/internal/fixture"
)

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
			collectors.Sample{Metric: links.PCIDevicePresent, Labels: []string{id, "GPU-" +
				id, fmt.Sprintf("0000:%02x:00.0", i), "gpu"}, Value: 1})
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
	fixture.Running(t, h.Run)
	return h
}
