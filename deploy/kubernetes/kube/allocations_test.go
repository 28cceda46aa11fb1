package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

var update = flag.Bool("update", false, "write testdata/allocations.json")

// A kubelet answers List.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	answer atomic.Pointer[podresources.ListPodResourcesResponse]
	hang   chan struct{} // closed when a call hangs; nil: none does
}

func (k *kubelet) List(ctx context.Context,
	_ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	if k.hang != nil {
		close(k.hang)
		<-ctx.Done()
	}
	return k.answer.Load(), ctx.Err()
}

func gives(pods ...*podresources.PodResources) *kubelet {
	k := &kubelet{}
	k.answer.Store(&podresources.ListPodResourcesResponse{PodResources: pods})
	return k
}

// serve serves at socket until stop is called.
func (k *kubelet) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return server.Stop
}

func plugin(name, resource string, ids ...string) *podresources.ContainerResources {
	return &podresources.ContainerResources{Name: name,
		Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}}
}

func pod(name string, containers ...*podresources.ContainerResources) *podresources.PodResources {
	return &podresources.PodResources{Namespace: "ml", Name: name, Containers: containers}
}

func claimed(driver, device string) *podresources.DynamicResource {
	return &podresources.DynamicResource{ClaimNamespace: "ml", ClaimName: "claims-gpu-x",
		ClaimResources: []*podresources.ClaimResource{{DriverName: driver, PoolName: "node-1", DeviceName: device}}}
}

// TestAllocations compares the file with the one that the agent's test reads.
func TestAllocations(t *testing.T) {
	dir := t.TempDir()
	socket, path := filepath.Join(dir, "s"), filepath.Join(dir, "allocations.json")
	gives(
		pod("train-0", plugin("main", "nvidia.com/gpu", "GPU-1::0", "GPU-1::3", "GPU-2"),
			plugin("mig", "nvidia.com/mig-1g.10gb", "MIG-1"), plugin("net", "rdma/hca", "x"), plugin("none", "nvidia.com/gpu")),
		pod("web", plugin("main", "example.com/nvidia.com/gpu", "GPU-3")),
		pod("claims", &podresources.ContainerResources{Name: "c", DynamicResources: []*podresources.DynamicResource{
			claimed("gpu.nvidia.com", "gpu-3"), claimed("compute-domain.nvidia.com", "daemon-0"),
			claimed("dra.net", "eth1")}}),
	).serve(t, socket)
	f, err := list(t.Context(), socket, patience)
	if err == nil {
		err = f.write(path)
	}
	got, err2 := os.ReadFile(path)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("testdata/allocations.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile("testdata/allocations.json"); err != nil || string(got) != string(want) {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
	if left, err := filepath.Glob(path + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left are %q, %v", left, err)
	}
}

// TestIncompleteAnswers: no answer but a complete one is written.
func TestIncompleteAnswers(t *testing.T) {
	for what, c := range map[string]struct {
		kubelet *kubelet
		want    string
	}{
		"too long an answer": {gives(pod(strings.Repeat("n", mostAnswer), plugin("main", "nvidia.com/gpu", "GPU-1"))),
			"received message larger than max"},
		"a pod without a name": {gives(pod("", plugin("main", "nvidia.com/gpu", "GPU-1"))), "has no name"},
	} {
		socket := filepath.Join(t.TempDir(), "s")
		c.kubelet.serve(t, socket)
		if f, err := list(t.Context(), socket, patience); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d containers, %v, want %q", what, len(f.Containers), err, c.want)
		}
	}

	long := gives()
	for i := range 5000 { // more than gRPC's own limit of 4 MiB
		long.answer.Load().PodResources = append(long.answer.Load().PodResources,
			pod(fmt.Sprintf("%d-%s", i, strings.Repeat("n", 1000)), plugin("main", "rdma/hca", "x")))
	}
	socket := filepath.Join(t.TempDir(), "s")
	long.serve(t, socket)
	if f, err := list(t.Context(), socket, patience); err != nil || f.Containers == nil || len(f.Containers) != 0 {
		t.Errorf("many pods without GPUs: %+v, %v", f, err)
	}

	many := file{Containers: make([]container, 40_000)}
	for i := range many.Containers {
		many.Containers[i].Pod = strings.Repeat("n", 100)
	}
	path := filepath.Join(t.TempDir(), "f")
	if err := many.write(path); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too long a file: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("too long a file was written: %v", err)
	}

	// a server of another protocol
	garbage, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer garbage.Close()
	go func() {
		for {
			c, err := garbage.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(strings.Repeat("\xff\x00garbage", 100)))
			_ = c.Close()
		}
	}()
	if _, err := list(t.Context(), garbage.Addr().String(), patience); err == nil {
		t.Error("garbage is accepted")
	}

	hangs := gives()
	hangs.hang = make(chan struct{})
	socket = filepath.Join(t.TempDir(), "s")
	hangs.serve(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-hangs.hang; cancel() }()
	if _, err := list(ctx, socket, patience); err == nil {
		t.Error("a hang is an answer")
	}
}

// TestPatience: a hanging kubelet costs a bounded time.
func TestPatience(t *testing.T) {
	k, socket := gives(), filepath.Join(t.TempDir(), "s")
	k.hang = make(chan struct{})
	k.serve(t, socket)
	began := time.Now()
	_, err := list(t.Context(), socket, 50*time.Millisecond)
	if took := time.Since(began); err == nil || took < 50*time.Millisecond || took > patience {
		t.Errorf("%v after %v", err, took)
	}
}

// TestRestarts runs the command beside a kubelet that starts late, ends and starts again.
func TestRestarts(t *testing.T) {
	dir := t.TempDir()
	socket, path := filepath.Join(dir, "s"), filepath.Join(dir, "allocations.json")
	log := make(lines, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"allocations", "--socket=" + socket, "--file=" + path, "--interval=10ms"}, log)
	}()
	defer func() {
		cancel()
		if status := <-ended; status != 0 {
			t.Errorf("status %d", status)
		}
	}()
	has := func(want string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) { // a file has no event
			text, err := os.ReadFile(path)
			if err == nil && json.Valid(text) && strings.Contains(string(text), want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%v, %s, want %s", err, text, want)
			}
		}
	}
	log.wait(t, "cannot keep the allocations")
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a kubelet there is a file: %v", err)
	}
	first := gives(pod("a", plugin("c", "nvidia.com/gpu", "GPU-1")))
	stop := first.serve(t, socket)
	has("GPU-1")
	log.wait(t, "can keep the allocations again")
	first.answer.Store(&podresources.ListPodResourcesResponse{})
	has(`"containers": []`)
	stop()
	log.wait(t, "cannot keep the allocations")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	gives(pod("a", plugin("c", "nvidia.com/gpu", "GPU-2"))).serve(t, socket)
	has("GPU-2")
	if after, err := os.Stat(path); err != nil || os.SameFile(before, after) {
		t.Errorf("the file was changed in place: %v", err)
	}
}

// lines are the lines of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// wait reads lines until one has want.
func (l lines) wait(t *testing.T, want string) {
	t.Helper()
	for {
		select {
		case line := <-l:
			if strings.Contains(line, want) {
				return
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no %q in the log", want)
		}
	}
}

// TestSockets checks that the kubelet is found where a distribution has it.
func TestSockets(t *testing.T) {
	dir := t.TempDir()
	all := []string{dir + "/a", dir + "/b"}
	before, err := existing(all), os.WriteFile(all[1], nil, 0o600)
	if after := existing(all); err != nil || before != all[0] || after != all[1] {
		t.Errorf("it is %s and then %s, %v", before, after, err)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"", 2, "usage: gpusteward-kube"},
		{"allocate", 2, "usage: gpusteward-kube"},
		{"allocations --help", 0, "-socket"},
		{"allocations --sockets=a", 2, "-sockets"},
		{"allocations now", 2, `"now"`},
		{"allocations --interval=1m", 2, "--interval"},
		{"allocations --interval=0s", 2, "--interval"},
	} {
		var out strings.Builder
		if status := run(t.Context(), strings.Fields(c.args), &out); status != c.status ||
			!strings.Contains(out.String(), c.want) {
			t.Errorf("%q: status %d, %s", c.args, status, out.String())
		}
	}
}

// TestEachLogsChanges: a failure that lasts is one line.
func TestEachLogsChanges(t *testing.T) {
	var out strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	answers := []error{errors.New("a"), errors.New("a"), nil, nil, errors.New("b"), nil}
	each(ctx, time.Nanosecond, slog.New(slog.NewTextHandler(&out, nil)), "work", func(context.Context) error {
		if len(answers) == 0 {
			cancel()
			return ctx.Err()
		}
		err := answers[0]
		answers = answers[1:]
		return err
	})
	if got := strings.Count(out.String(), "\n"); got != 4 || strings.Count(out.String(), "can work again") != 2 {
		t.Errorf("%d lines:\n%s", got, out.String())
	}
}
