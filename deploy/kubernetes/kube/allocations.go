package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	patience    = 5 * time.Second // for the kubelet's answer
	mostAnswer  = 16 << 20        // bytes of it, as in Kubernetes's own clients
	mostWritten = 4 << 20         // bytes of the file, which the agent accepts
)

// A file is what the agent reads, in collectors/host/podallocations.go.
type file struct {
	Containers []container `json:"containers"`
}

// A container has devices of NVIDIA's device plugin or of claims for NVIDIA's DRA driver.
type container struct {
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	Container string   `json:"container"`
	Devices   []string `json:"devices,omitempty"`
	Claims    []claim  `json:"claims,omitempty"`
}

type claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Driver    string `json:"driver"`
	Pool      string `json:"pool"`
	Device    string `json:"device"`
}

// allocations keeps the file until ctx ends. It rewrites the file after each complete answer of the
// kubelet, and leaves it alone after any other: the agent ignores a file that has become old.
func allocations(ctx context.Context, flags *flag.FlagSet, args []string, log *slog.Logger) error {
	socket := flags.String("socket", "", "the kubelet's pod-resources `socket`; by default the first that exists of "+
		strings.Join(sockets, ", "))
	path := flags.String("file", "/run/gpusteward/kubelet/allocations.json", "the `file` to keep")
	interval := flags.Duration("interval", 10*time.Second, "time between requests; the agent ignores a file older than 1m")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *interval <= 0 || *interval > 30*time.Second {
		return fmt.Errorf("--interval: %v is not above 0 and at most 30s", *interval)
	}
	each(ctx, *interval, log, "keep the allocations", func(ctx context.Context) error {
		f, err := list(ctx, cmp.Or(*socket, existing(sockets)), patience)
		if err != nil {
			return err
		}
		return f.write(*path)
	})
	return nil
}

// sockets are the kubelet's in most distributions, in k0s and in MicroK8s.
var sockets = []string{"/var/lib/kubelet/pod-resources/kubelet.sock", "/var/lib/k0s/kubelet/pod-resources/kubelet.sock",
	"/var/snap/microk8s/common/var/lib/kubelet/pod-resources/kubelet.sock"}

// existing returns the first of paths that exists, or the first of all.
func existing(paths []string) string {
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return paths[0]
}

// list asks the kubelet, which may take that long. Each call has a connection of its own: a kept one would wait before it
// connects to a kubelet that was restarted.
func list(ctx context.Context, socket string, patience time.Duration) (f file, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostAnswer)))
	if err != nil {
		return f, err
	}
	defer func() { _ = connection.Close() }()
	answer, err := podresources.NewPodResourcesListerClient(connection).List(ctx,
		&podresources.ListPodResourcesRequest{})
	if err != nil {
		return f, fmt.Errorf("list pod resources: %w", err)
	}
	f.Containers = []container{} // not null: the agent refuses a file without a list
	for _, pod := range answer.GetPodResources() {
		for _, c := range pod.GetContainers() {
			one := container{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: c.GetName(),
				Devices: devices(c.GetDevices()), Claims: claims(c.GetDynamicResources())}
			if len(one.Devices)+len(one.Claims) == 0 {
				continue
			}
			if one.Namespace == "" || one.Pod == "" || one.Container == "" {
				return f, errors.New("list pod resources: a container with GPUs has no name")
			}
			f.Containers = append(f.Containers, one)
		}
	}
	return f, nil
}

// devices returns the ids of NVIDIA's device plugin. A time-shared GPU has an id for each share,
// "GPU-...::2", and is returned once.
func devices(resources []*podresources.ContainerDevices) (all []string) {
	for _, r := range resources {
		if !strings.HasPrefix(r.GetResourceName(), "nvidia.com/") {
			continue
		}
		for _, id := range r.GetDeviceIds() {
			if id, _, _ = strings.Cut(id, "::"); id != "" && !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

// claims returns the GPUs that claims gave. Other drivers of NVIDIA give none.
func claims(resources []*podresources.DynamicResource) (all []claim) {
	for _, r := range resources {
		for _, c := range r.GetClaimResources() {
			if c.GetDriverName() == "gpu.nvidia.com" {
				all = append(all, claim{Namespace: r.GetClaimNamespace(), Name: r.GetClaimName(),
					Driver: c.GetDriverName(), Pool: c.GetPoolName(), Device: c.GetDeviceName()})
			}
		}
	}
	return all
}

// write replaces the file at path, whole or not at all.
func (f file) write(path string) error {
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	if len(text) > mostWritten {
		return fmt.Errorf("the allocations have %d bytes, more than %d", len(text), mostWritten)
	}
	draft := path + ".new"
	err = os.WriteFile(draft, append(text, '\n'), 0o644)
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		_ = os.Remove(draft)
		return fmt.Errorf("write the allocations: %w", err)
	}
	return nil
}
