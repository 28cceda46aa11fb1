//go:build tools

package jobs

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestRealServersStuck names the line at which real servers are stuck, within a minute of their clock.
func TestRealServersStuck(t *testing.T) {
	t.Parallel()
	for kind, line := range map[string]string{"lock": "lock", "peer": "peer", "slow peer": "slow peer", "one thread": "lock",
		"await": "await", "loop": "loop", "engine": "engine"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			path := fixture.Value(filepath.Abs("testdata/serve.py"))(t)
			servers := string(fixture.Value(os.ReadFile(path))(t))
			c := exec.CommandContext(t.Context(), "python3", path, kind)
			out := fixture.Value(c.StdoutPipe())(t)
			fixture.Must(t, c.Start())
			t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
			var port, pid int
			fixture.Must(t, fixture.Error(fmt.Fscan(out, &port, &pid)))
			ask := func(path string) net.Conn {
				conn := fixture.Value(net.Dial("tcp", fmt.Sprint("127.0.0.1:", port)))(t)
				t.Cleanup(func() { _ = conn.Close() })
				fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
				return conn
			}
			fixture.Must(t, fixture.Error(ask("/").Read(make([]byte, 9))))
			h := hostOf(t, pid)
			fixture.Equal(t, len(h.passes(60)), 0, "hangs while it is idle:")
			ask("/stop")
			health := ask("/health")
			_ = health.SetReadDeadline(time.Now().Add(time.Second))
			_, err := health.Read(make([]byte, 9))
			alive := err == nil
			fixture.Equal(t, alive, kind != "one thread" && kind != "loop", "it answers others:")
			fixture.Eventually(t, "it is told", func() bool { return len(h.passes(10)) > 0 })
			told := h.placed()
			before, _, _ := strings.Cut(servers, "# here "+line+"\n")
			number := 1 + strings.Count(before, "\n")
			if len(told) != 1 || told[0].Reason != "unread" || !strings.HasPrefix(told[0].Where, fmt.Sprintf("%s:%d in ", path, number)) {
				t.Errorf("%+v, want line %d", told, number)
			}
		})
	}
}
