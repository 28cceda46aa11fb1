//go:build long

package health

import (
	"slices"
	"strings"
	"testing"

	"gpusteward/collectors"
	"gpusteward/collectors/links"
)

// TestSitesAreRough checks that some of the styles have their intended effect.
func TestSitesAreRough(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		style string
		what  string
		rough func(s *site, samples []collectors.Sample) bool
	}{
		{"starved agent", "an agent that passes and has read no board",
			func(s *site, samples []collectors.Sample) bool {
				return !slices.ContainsFunc(samples,
					func(o collectors.Sample) bool { return o.Metric == collectors.Up && o.Value == 1 })
			}},
		{"slow nvml", "a board that hangs in a call", func(s *site, samples []collectors.Sample) bool {
			return slices.ContainsFunc(samples, func(o collectors.Sample) bool {
				return o.Metric == collectors.WorkerStuck && strings.HasPrefix(o.Labels[2], "nvml")
			})
		}},
		{"handed to virtual machines", "a board that another driver has",
			func(s *site, samples []collectors.Sample) bool {
				return slices.ContainsFunc(samples, func(o collectors.Sample) bool {
					return o.Metric == links.PCIDeviceBound && o.Labels[4] == "vfio-pci"
				})
			}},
		{"locked clocks", "a board that is busy at less than a fifth of its power",
			func(s *site, _ []collectors.Sample) bool {
				return slices.ContainsFunc(s.boards, func(b *board) bool {
					return b.v.utilization > 0.9 &&
						b.v.average < 0.2*b.number("w_limit")
				})
			}},
		{"warm aisle", "a board near its limit", func(s *site, _ []collectors.Sample) bool {
			return slices.ContainsFunc(s.boards, func(b *board) bool { return b.v.margin < 15 })
		}},
		{"gh200", "memory that no process has", func(s *site, _ []collectors.Sample) bool {
			return slices.ContainsFunc(s.boards, func(b *board) bool { return b.v.used > 10<<30 && b.residents == 0 })
		}},
	} {
		t.Run(c.style, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(8) {
				s := newSite(worldRowOf("styles", "style", c.style), seed)
				for begin := s.clock; s.clock-begin < day; {
					if c.rough(s, s.pass()) {
						return
					}
				}
			}
			t.Errorf("there never was %s", c.what)
		})
	}
}
