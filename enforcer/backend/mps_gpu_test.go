//go:build gpu

package backend

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/internal/fixture"
)

// TestGPUMPS holds that the real control daemon behaves like testdata/mps-control.sh: a server of this user receives a
// limit and a cap, and loses them.
func TestGPUMPS(t *testing.T) {
	command, err := exec.LookPath(mpsCommand)
	if err != nil {
		t.Skip(err)
	}
	uuids := fixture.Value(exec.Command("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").Output())(t)
	uuid := strings.Fields(string(uuids))[0]
	dir := fixture.Value(os.MkdirTemp("", "mps"))(t) // short, because a socket's path is limited
	defer os.RemoveAll(dir)
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", dir)
	t.Setenv("CUDA_MPS_LOG_DIRECTORY", dir)
	if out, err := exec.Command(command, "-d").CombinedOutput(); err != nil {
		t.Fatalf("start the control daemon: %v: %s", err, out)
	}
	ps := fixture.Value(host.ProcFS("/proc"))(t)
	var log bytes.Buffer
	m := NewMPS(MPSOptions{Proc: ps, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Tenant: func(uid int) (string, bool) { return "a", uid == os.Getuid() }})
	defer func() { _ = m.control.silent(t.Context(), "quit") }()
	fixture.Must(t, m.control.silent(t.Context(), "start_server -uid %d", os.Getuid()))
	var pids []int
	for begin := time.Now(); len(pids) == 0 && time.Since(begin) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
		pids = fixture.Value(m.control.pids(t.Context(), "get_server_list"))(t)
	}
	fixture.Need(t, len(pids), 1, "servers %v, want one", pids)
	if _, err := m.control.pids(t.Context(), "get_client_list 1"); !errors.Is(err, errServerGone) {
		t.Errorf("%v for a server that is none", err)
	}
	if _, err := m.control.pids(t.Context(), "nonsense"); err == nil || errors.Is(err, errServerGone) {
		t.Errorf("%v for nonsense", err)
	}
	for _, c := range []struct {
		limit   float64
		memory  uint64
		holds   []Hold
		threads float64
	}{
		{.3, 1500 << 20, []Hold{{"a", uuid, Compute}, {"a", uuid, Memory}}, .3},
		{.334, 900 << 20, []Hold{{"a", uuid, Compute}, {"a", uuid, Memory}}, .334},
		{1, 8 << 30, []Hold{{"a", uuid, Memory}}, 1},
		{1, 0, nil, 1},
	} {
		saw := fixture.Value(m.look(t.Context(), mpsWants([]Demand{demand("a", uuid, c.limit, c.memory)})))(t)
		if len(saw.servers) != 1 || math.Abs(saw.servers[0].Threads-c.threads) > 1e-9 ||
			!slices.Equal(sorted(saw.holds), c.holds) {
			t.Errorf("limit %g, cap %d: holds %v, servers %v; says %s", c.limit, c.memory, saw.holds, saw.servers,
				log.String())
		}
	}
}
