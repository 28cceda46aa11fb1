package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// An IBPort is a port of an RDMA adapter: InfiniBand, or Ethernet with RoCE.
type IBPort struct {
	Name   string // adapter and port, "mlx5_0/1"
	Up     bool   // the port carries traffic: its state is ACTIVE
	Counts bool   // whether Downed is known
	Downed uint64 // times that its link went down, since the adapter's counters began
}

// IBPorts returns the ports, sorted by name. It may wait for an adapter's
// firmware. The error is fs.ErrNotExist if there are no adapters.
func (k Kernel) IBPorts() ([]IBPort, error) {
	const class = "class/infiniband"
	adapters, err := fs.ReadDir(k.sys(), class)
	if err != nil {
		return nil, fmt.Errorf("list rdma adapters: %w", err)
	}
	var all []IBPort
	for _, adapter := range adapters {
		dir := path.Join(class, adapter.Name(), "ports")
		ports, err := fs.ReadDir(k.sys(), dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list ports: %w", err)
		}
		for _, port := range ports {
			state, err := line(k.sys(), path.Join(dir, port.Name(), "state")) // "4: ACTIVE"
			if errors.Is(err, fs.ErrNotExist) {
				continue // the port has gone
			} else if err != nil {
				return nil, fmt.Errorf("read the state of a port: %w", err)
			}
			p := IBPort{Name: adapter.Name() + "/" + port.Name(), Up: strings.HasPrefix(state, "4:")}
			if text, err := line(k.sys(), path.Join(dir, port.Name(), "counters/link_downed")); err == nil {
				p.Downed, err = strconv.ParseUint(text, 10, 64)
				p.Counts = err == nil
			}
			all = append(all, p)
		}
	}
	return all, nil
}
