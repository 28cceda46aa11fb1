//go:build kubelet

package host

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// A kubelet answers List.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	answer *podresources.ListPodResourcesResponse
	hang   bool
}

func (k *kubelet) List(ctx context.Context,
	_ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	if k.hang {
		<-ctx.Done()
	}
	return k.answer, ctx.Err()
}

func (k *kubelet) serve(t *testing.T) string {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return socket
}

func TestKubeletAllocations(t *testing.T) {
	container := func(name, resource string, ids ...string) *podresources.ContainerResources {
		return &podresources.ContainerResources{Name: name,
			Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}}
	}
	k := &kubelet{answer: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Namespace: "ml", Name: "train-0", Containers: []*podresources.ContainerResources{
			container("main", "nvidia.com/gpu", "GPU-1::0", "GPU-1::3", "GPU-2"),
			container("mig", "nvidia.com/mig-1g.10gb", "MIG-1"), container("net", "rdma/hca", "x")}},
		{Namespace: "ml", Name: strings.Repeat("n", 8<<20)}, // more than gRPC's default limit
	}}}
	want := []Allocation{{Namespace: "ml", Pod: "train-0", Container: "main", Devices: []string{"GPU-1", "GPU-2"}},
		{Namespace: "ml", Pod: "train-0", Container: "mig", Devices: []string{"MIG-1"}}}
	if got, err := KubeletAllocations(t.Context(), k.serve(t)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestKubeletFailure(t *testing.T) {
	if got, err := KubeletAllocations(t.Context(), filepath.Join(t.TempDir(), "none")); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	began := time.Now()
	if _, err := KubeletAllocations(t.Context(), (&kubelet{hang: true}).serve(t)); err == nil ||
		time.Since(began) > 2*patience {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
