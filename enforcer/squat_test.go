package enforcer_test

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// stubbed is the UUID of the first simulated GPU.
var stubbed = [16]byte([]byte("gpusteward-stub\x00"))

// TestNoSquattingOnAnOvercommittedGPU has somebody hold, or claim to hold, most of an overcommitted GPU in ways in
// which it does not give way. A program that needs most of it has that within a minute all the same.
func TestNoSquattingOnAnOvercommittedGPU(t *testing.T) {
	t.Parallel()
	const most = 3584 * mib
	squatter := func(kind string) func(*governed) *worker {
		return func(g *governed) *worker {
			a := g.job("a", true, "--alloc-mib=2560", "--alloc-step-mib=2560", "--alloc-kind="+kind, "--burst-ms=0.1",
				"--sleep-ms=600000")
			ready(g.t, a)
			return a
		}
	}
	says := func(kinds wire.Shared) func(*governed) {
		return func(g *governed) {
			a := squatter("native")(g)
			fixture.Need(g.t, taken(g.t, a), 2560*mib, "it takes … bytes")
			word := binary.LittleEndian.AppendUint32(nil, uint32(kinds))
			mapped(g.t, a.Cmd.Process.Pid, "leases", wire.TraceAt, func(memory *os.File, from int64) error {
				return fixture.Error(memory.WriteAt(word, from+64+48))
			})
		}
	}
	const renewed = "renewed by new clients"
	stop, ended := make(chan struct{}), make(chan struct{}) // of the renewals
	for name, squat := range map[string]func(*governed){
		"booked":   func(g *governed) { speakOf(g.t, g.socket, "", stubbed, 0).hoard(most, true) },
		"reserved": func(g *governed) { speakOf(g.t, g.socket, "", stubbed, 0).hoard(most, false) },
		"by many clients": func(g *governed) {
			for range 14 {
				speakOf(g.t, g.socket, "", stubbed, 0).hoard(most/14, true)
			}
		},
		renewed: func(g *governed) {
			s := speakOf(g.t, g.socket, "", stubbed, 0)
			s.hoard(most, true)
			go func() {
				defer close(ended)
				for tick := time.NewTicker(time.Second); ; {
					select {
					case <-stop:
						return
					case <-tick.C:
						s.send(wire.TypeFree, &wire.Memory{Bytes: most})
						_ = s.conn.Close()
						s = speakOf(g.t, g.socket, "", stubbed, 0)
						s.hoard(most, true)
					}
				}
			}()
		},
		"unified":                 func(g *governed) { fixture.Equal(g.t, taken(g.t, squatter("managed")(g)), 0, "it takes … bytes") },
		"says it is unified":      says(wire.SharedManaged),
		"says that it shares":     says(wire.SharedProcesses),
		"says that it multicasts": says(wire.SharedMulticast),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := suspending(t, 0, 0, []string{"a", "b"}, overcommitted(2), func(table *policy.Table) {
				table.Rules[0].Priority, table.Rules[1].Priority = policy.PriorityLow, policy.PriorityHigh
				table.Default.Priority = policy.PriorityLow
			})
			g.stop()
			g.broker.Holds, g.size = g.truth.holds, 4<<30
			g.run(g.table)
			squat(g)
			if name == renewed { // before the end of the test closes its connection
				defer func() { close(stop); <-ended }()
			}
			g.audited()
			b := g.job("b", true, "--kernel-us=200", "--seconds=600", "--alloc-mib=2560", "--alloc-step-mib=2560")
			fixture.Equal(t, taken(t, b), 2560*mib, "it takes … MiB of 2560")
			g.work(b)
		})
	}
}
