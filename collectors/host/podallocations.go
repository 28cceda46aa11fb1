package host

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Limits on the file of gpusteward-kube.
const (
	podsFresh = time.Minute     // it is rewritten every 10 s
	skew      = 5 * time.Second // of the clock, which may be set back
	mostPods  = 4 << 20         // bytes
)

// A Claim is a device that a claim of dynamic resource allocation (DRA) gave.
// The names are Kubernetes's.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Driver    string `json:"driver"`
	Pool      string `json:"pool"`
	Device    string `json:"device"`
}

// podAllocations returns the devices that the kubelet has given to containers,
// from the file that gpusteward-kube (deploy/kubernetes/kube) keeps, and the
// time until which they hold. An unreadable or incomplete file, or one that is
// no longer rewritten, is an error, because a missing allocation would look
// like a free GPU. The error is fs.ErrNotExist if there is no file.
func podAllocations(path string, now time.Time) (all []Allocation, until time.Time, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, until, err
	}
	age := now.Sub(info.ModTime())
	if age > podsFresh || age < -skew {
		return nil, until, fmt.Errorf("%s: it was written %v ago: is gpusteward-kube running?", path, age.Round(time.Second))
	}
	text, err := ReadTrusted(path, mostPods)
	if err != nil {
		return nil, until, err
	}
	var file struct {
		Containers []Allocation `json:"containers"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, until, fmt.Errorf("%s: %w", path, err)
	}
	if file.Containers == nil {
		return nil, until, fmt.Errorf("%s: it has no list of containers", path)
	}
	for i := range file.Containers {
		a := &file.Containers[i]
		if a.Namespace == "" || a.Pod == "" || a.Container == "" || len(a.Devices)+len(a.Claims) == 0 {
			return nil, until, fmt.Errorf("%s: container %d has no name or no device", path, i)
		}
		for _, text := range []*string{&a.Namespace, &a.Pod, &a.Container} {
			*text = field(*text)
		}
		for j := range a.Claims {
			c := &a.Claims[j]
			for _, text := range []*string{&c.Namespace, &c.Name, &c.Driver, &c.Pool, &c.Device} {
				*text = field(*text)
			}
		}
	}
	return file.Containers, info.ModTime().Add(podsFresh), nil
}
