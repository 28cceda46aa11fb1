//go:build gpu

package hook

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestSliceOnCard has two programs fill a real GPU, and prints their paces under
// several time slices. Without root, it shows that no privilege is needed. The line
// of the hook says what the driver's slice is.
func TestSliceOnCard(t *testing.T) {
	so, _ := here.made(t)
	var done [2]atomic.Int64 // launches
	var brokers [2]*pageBroker
	for i := range brokers {
		out, in := io.Pipe()
		defer in.Close()
		brokers[i], _ = launches(t, in, append(os.Environ(), "LD_PRELOAD="+so, "GPUSTEWARD_LOG=1")...)
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				var at, n int64
				if _, err := fmt.Sscanf(lines.Text(), "step %d %d", &at, &n); err == nil {
					done[i].Store(n)
				}
			}
		}()
	}
	paces := func() (p [2]float64) {
		const each = 3 * time.Second
		begun := [2]int64{done[0].Load(), done[1].Load()}
		time.Sleep(each)
		for i := range p {
			p[i] = float64(done[i].Load()-begun[i]) / each.Seconds()
		}
		return p
	}
	for done[0].Load() == 0 || done[1].Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for _, slices := range [][2]uint32{{0, 0}, {20000, 250}, {250, 20000}, {2100, 2100}, {0, 0}} {
		for i, b := range brokers {
			b.slice(slices[i])
			b.until(t, fmt.Sprintf("a slice of %d us", slices[i]), func(u wire.Usage) bool {
				if u.Refused > 0 {
					t.Fatal("the driver refuses time slices")
				}
				return uint32(u.Slice) == slices[i]
			})
		}
		p := paces()
		t.Logf("slices of %5d and %5d us: %6.0f and %6.0f launches a second", slices[0], slices[1], p[0], p[1])
		long, short := p[0], p[1]
		if slices[0] < slices[1] {
			long, short = p[1], p[0]
		}
		if slices[0] != slices[1] && long < 2*short {
			t.Errorf("a slice of 20 ms gives %.0f launches a second, and one of 250 us %.0f", long, short)
		}
	}
	version := fixture.Value(os.ReadFile("/proc/driver/nvidia/version"))(t)
	t.Logf("uid %d, %s", os.Geteuid(), version)
}
