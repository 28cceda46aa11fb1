package gemini

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The statistics name the tenants on the GPU of the table, and their processes
// on this host.
func TestBooks(t *testing.T) {
	t.Parallel()
	s := start(t, "2\na 0.3 0.9 1000\nb 0.7 1 2000\n", Options{File: filepath.Join(t.TempDir(), "GPU-7")})
	h := dial(t, s, "a")
	h.call(take(600))
	h.call(take(600))
	h.call(Request{Kind: Quota})
	b := s.Books()
	for ; b.Tenants[0].Share10s.Actual == 0 || b.Tenants[0].ChargedSeconds == 0; b = s.Books() {
		time.Sleep(time.Millisecond)
	}
	if b.GPU != "GPU-7" || b.Listen != s.address().String() || b.Clients != 1 || b.Requests["quota"] != 1 ||
		b.Requests["memory_update"] != 2 {
		t.Errorf("%+v", b)
	}
	if len(b.Processes) != 1 || b.Processes[os.Getpid()] != "gemini:a" {
		t.Errorf("processes %v", b.Processes)
	}
	n := b.Tenants[0]
	if n.Tenant != "gemini:a" || n.GPU != "GPU-7" || n.Guarantee != 0.3 || n.Limit != 0.9 || n.Sessions != 1 ||
		n.Turns != 1 ||
		n.MemoryCap != 1000 || n.MemoryUsed != 600 || n.MemoryDenied != 1 || n.ChargedSeconds <= 0 ||
		n.Share10s.Actual <= 0 {
		t.Errorf("%+v", n)
	}
	if n := b.Tenants[1]; n.Tenant != "gemini:b" || n.Sessions != 0 || n.Turns != 0 || n.MemoryUsed != 0 {
		t.Errorf("%+v", n)
	}

	s = start(t, two, Options{Role: Scheduler})
	dial(t, s, "a").call(Request{Kind: MemoryLimit})
	if b := s.Books(); b.GPU != "" || b.Clients != 1 || len(b.Processes) != 0 {
		t.Errorf("a pod manager is taken for a process on the GPU: %+v", b)
	}
}
