//go:build kubelet

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// KubeletAllocations returns the NVIDIA devices that the kubelet behind socket,
// /var/lib/kubelet/pod-resources/kubelet.sock, has given to containers; none if
// there is no kubelet. It takes 2 s at most.
func KubeletAllocations(ctx context.Context, socket string) ([]Allocation, error) {
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		// a node with many pods exceeds the default of 4 MiB
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.Close() }()
	answer, err := podresources.NewPodResourcesListerClient(connection).List(ctx,
		&podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod resources: %w", err)
	}
	var all []Allocation
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			if devices := nvidia(container.GetDevices()); len(devices) > 0 {
				all = append(all, Allocation{Namespace: field(pod.GetNamespace()), Pod: field(pod.GetName()),
					Container: field(container.GetName()), Devices: devices})
			}
		}
	}
	return all, nil
}

// nvidia returns the ids of NVIDIA devices. A time-shared GPU has an id for
// each share, "GPU-...::2", and is returned once.
func nvidia(resources []*podresources.ContainerDevices) []string {
	var all []string
	seen := map[string]bool{}
	for _, r := range resources {
		if !strings.HasPrefix(r.GetResourceName(), "nvidia.com/") {
			continue
		}
		for _, id := range r.GetDeviceIds() {
			id, _, _ = strings.Cut(id, "::")
			if id = field(id); !seen[id] {
				seen[id] = true
				all = append(all, id)
			}
		}
	}
	return all
}
