//go:build !kubelet

package host

import "context"

// KubeletAllocations returns none: this program was built without the tag
// kubelet, and without the 9 MB of gRPC that it needs.
func KubeletAllocations(context.Context, string) ([]Allocation, error) { return nil, nil }
