//go:build gpu

package enforcer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"gpusteward/internal/wire"
)

// TestGPUTraces records what real programs write into their traces, beside
// their own timers, for tests that need no GPU. GS_JOBS_OUT names the directory
// of the results: KIND.json[.RANK] by hook/bench/jobs.py, and PID.trace, the
// events as little-endian int64 ns, uint32 id, uint8 kind, uint8 gpu, uint16
// thread.
var (
	jobsSeconds = flag.Float64("jobs.seconds", 10, "`seconds` of each program")
	jobsOnly    = flag.String("jobs.only", "", "`regexp` of the kinds of programs; empty is all")
	jobsBeside  = flag.Int("jobs.beside", 4, "`programs` at a time")
)

var jobKinds = []string{"eager", "tenth", "queue", "compiled", "graph", "accumulate", "amp", "loader", "gpt2",
	"padding", "trainer", "gan", "jax", "triton", "requests", "decode", "notebook", "endless"}

func TestGPUTraces(t *testing.T) {
	out := os.Getenv("GS_JOBS_OUT")
	if out == "" {
		t.Skip("GS_JOBS_OUT names no directory for the traces")
	}
	r := record(t)
	only := regexp.MustCompile("^(" + *jobsOnly + ")$")
	kinds := jobKinds
	if len(products()) > 1 {
		kinds = []string{"ddp", "fsdp", "straggler"}
		*jobsBeside = 1
	}
	var group sync.WaitGroup
	slots := make(chan struct{}, *jobsBeside)
	for _, kind := range kinds {
		if *jobsOnly != "" && !only.MatchString(kind) {
			continue
		}
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := r.run(t, kind, filepath.Join(out, kind+".json")); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		})
	}
	group.Wait()
	r.write(t, out)
}

func (r *recorder) run(t *testing.T, kind, file string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", filepath.Join(path(t, "GS_BENCH", "hook/bench"), "jobs.py"), kind,
		fmt.Sprint(*jobsSeconds), file)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+r.hook, "GPUSTEWARD_SOCKET="+r.socket)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text[max(0, len(text)-1500):])
	}
	return nil
}

// write writes the traces, and prints what is in them.
func (r *recorder) write(t *testing.T, out string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid, one := range r.events {
		var b bytes.Buffer
		counts := map[wire.EventKind]int{}
		for _, e := range one.events {
			counts[e.Kind]++
			_ = binary.Write(&b, binary.LittleEndian, e)
		}
		if err := os.WriteFile(filepath.Join(out, fmt.Sprintf("%d.trace", pid)), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		text, _ := json.Marshal(one.communicators[:2])
		fmt.Printf("pid %d: %d events, %d lost, head %d: %v %s\n", pid, len(one.events), one.lost, one.head, counts, text)
	}
}
