//go:build gpu

package diag

import (
	"encoding/binary"
	"flag"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

var (
	level = flag.Int("diag.level", 1, "level of TestGPUDiag")
	runs  = flag.Int("diag.runs", 1, "how often TestGPUDiag tests")
)

// this is the host of the test.
var this = host{Real: true}

// TestGPUDiag expects this host's unused GPUs to pass each time, within the level's stated time.
func TestGPUDiag(t *testing.T) {
	longest := map[int]time.Duration{1: 10 * time.Second, 2: time.Minute, 3: 10 * time.Minute}[*level]
	for run := range *runs {
		r := tested(t, this, Options{Level: *level})
		text, status := r.Report("text", incident.Warning)
		fixture.Equal(t, status, 0, "run %d: exit status", run+1)
		fixture.AtMost(t, time.Duration(r.Seconds*float64(time.Second)), longest, "run %d took", run+1)
		t.Logf("run %d\n%s", run+1, text)
	}
}

// TestGPUDiagFaults expects each injected fault to be found on its GPU, and nothing else. The GPU must pass afterwards.
func TestGPUDiagFaults(t *testing.T) {
	units := make([]string, len(Units))
	for i, u := range Units {
		units[i] = u.Name + ":0"
	}
	for _, c := range []struct {
		fault Fault
		want  []string
		says  string
	}{
		{WrongSM, units, "SM " + strconv.Itoa(injuredSM) + ": "},
		{WrongBit, []string{"memory:0"}, "(0x807060504030201 instead of 0x"},
		{LowClock, []string{"clock:0"}, "without a reason"},
		{Hang, []string{"compute:0"}, "the GPU did not finish compute in "},
		{"", nil, "no fault"},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			r := tested(t, this, Options{Fault: c.fault, Patience: 5 * time.Second})
			text, _ := r.Report("text", incident.Warning)
			if got := r.failures(); !slices.Equal(got, c.want) || !strings.Contains(text, c.says) {
				t.Errorf("failures %q, want %q, and %q in\n%s", got, c.want, c.says, text)
			}
			t.Logf("%.1f s", r.Seconds)
		})
	}
}

// TestGPUDiagRefuses expects a GPU with another process to be left alone, and
// to be tested as soon as that process is gone.
func TestGPUDiagRefuses(t *testing.T) {
	user := fixture.Value((&test{Options: this.options(t)}).spawn())(t)
	gpus, err := user.do(t.Context(), Order{Step: Survey}, time.Minute)
	fixture.Need(t, err != nil || len(gpus.GPUs) == 0, false, "%+v, %v", gpus, err)
	r, err := user.do(t.Context(), Order{Step: Open, GPU: gpus.GPUs[0].UUID}, time.Minute)
	fixture.Need(t, err != nil || r.Error != "", false, "%+v, %v", r, err)
	o := Options{GPUs: []string{"0"}}
	text, status := tested(t, this, o).Report("text", incident.Warning)
	fixture.If(t, status != 3 || !strings.Contains(text, "GPU 0 was not tested: it is in use "),
		"exit status %d\n%s", status, text)
	t.Log(strings.SplitN(text, "\n", 2)[0])
	user.close()
	if text, status := tested(t, this, o).Report("text", incident.Warning); status != 0 {
		t.Errorf("after its user ended: exit status %d\n%s", status, text)
	}
}

// TestGPUDiagKernels expects the kernels to compute the same as Go. A changed word is found, and Pattern gives its
// right value. Sums of the SM that is told to fail are wrong, and no others.
func TestGPUDiagKernels(t *testing.T) {
	runtime.LockOSThread()
	driver := fixture.Value(openDriver())(t)
	gpus := fixture.Value(driver.GPUs())(t)
	d := fixture.Value(driver.Open(gpus[0].UUID))(t)
	size := fixture.Value(d.Reserve())(t)
	injury := binary.LittleEndian.Uint64([]byte{1, 2, 3, 4, 5, 6, 7, 8})
	for _, p := range cycle(3) {
		begin := time.Now()
		m, err := d.Pattern(p, true)
		fixture.Stop(t, err != nil || m.Bytes != size || m.Errors != 1 || len(m.First) != 1, "%+v: %+v, %v", p, m, err)
		if w := m.First[0]; w.Got != injury || w.Want != p.Word(size/8/2, w.Address) {
			t.Errorf("%+v: %#x, want %#x instead of %#x", p, w, p.Word(size/8/2, w.Address), injury)
		}
		t.Logf("%+v: %.0f GB/s", p, 2*float64(size)/1e9/time.Since(begin).Seconds())
	}
	fixture.Must(t, d.Release())
	facts := d.Facts()
	for _, u := range Units {
		for injured := -1; injured < facts.SMs; injured += 7 {
			tally, err := d.Products(u, uint64(injured), 8, injured)
			fixture.Stop(t, err != nil || len(tally.Of) != facts.SMs,
				"%s: %d of %d SMs, %v", u.Name, len(tally.Of), facts.SMs, err)
			for sm, s := range tally.Of {
				fixture.If(t, s.Tiles == 0 || (s.Wrong > 0) != (sm == injured),
					"%s with a fault in SM %d: SM %d has %+v", u.Name, injured, sm, s)
			}
		}
	}
}
