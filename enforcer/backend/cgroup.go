package backend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/procs"
)

// settleHomes finds each tenant's cgroup, and returns the tenants that have
// processes in it now.
func (k *KernelMemory) settleHomes(demands []Demand, why remarks) map[string]bool {
	groups := map[string][]string{} // of each tenant's processes
	for _, d := range demands {
		for _, p := range d.Processes {
			if group, ok := k.group(p); ok && !slices.Contains(groups[d.Tenant], group) {
				groups[d.Tenant] = append(groups[d.Tenant], group)
			}
		}
	}
	present, named := map[string]bool{}, map[string]bool{policy.DefaultTenant: true}
	for _, d := range demands {
		if named[d.Tenant] {
			continue
		}
		named[d.Tenant] = true
		home, err := homeOf(k.homes[d.Tenant], groups[d.Tenant])
		for other, theirs := range groups {
			if home != "" && other != d.Tenant &&
				slices.ContainsFunc(theirs, func(g string) bool { return within(g, home) }) {
				home, err = "", fmt.Errorf("tenant %s has processes in its cgroup %s too", other, home)
			}
		}
		if home != "" {
			if _, err := os.Stat(filepath.Join(k.o.Cgroups, home)); err != nil {
				home = "" // it went with its processes
			}
		}
		if err != nil && (d.Memory > 0 || d.Reserved > 0) {
			why["tenant "+d.Tenant] = err.Error()
		}
		k.homes[d.Tenant], present[d.Tenant] = home, len(groups[d.Tenant]) > 0
	}
	for tenant := range k.homes {
		if !named[tenant] || k.homes[tenant] == "" {
			delete(k.homes, tenant)
		}
	}
	return present
}

// group returns the cgroup of a process if it still exists.
func (k *KernelMemory) group(p host.Process) (string, bool) {
	h, err := k.o.Proc.Open(p.PID)
	if err != nil {
		return "", false
	}
	defer h.Close()
	facts, err := h.Facts()
	if err != nil || facts.Start != p.Start {
		return "", false
	}
	return procs.Cgroup(facts.Cgroup, "")
}

// within reports whether a cgroup is another or below it.
func within(group, root string) bool {
	rest, ok := strings.CutPrefix(group, root)
	return ok && (rest == "" || rest[0] == '/')
}

// homeOf returns the cgroup that holds all of a tenant's processes, which are
// in groups. A former home still counts if they are below it, because users may
// make cgroups below their own. Without processes the home stays as it was. The
// root is no home.
func homeOf(before string, groups []string) (string, error) {
	if len(groups) == 0 {
		return before, nil
	}
	for _, home := range append([]string{before}, groups...) {
		if home == "" || slices.ContainsFunc(groups, func(g string) bool { return !within(g, home) }) {
			continue
		}
		if home == "/" || within(home, "/..") {
			return "", errors.New("its processes are in no cgroup of their own")
		}
		return home, nil
	}
	return "", fmt.Errorf("its processes are in several cgroups, as %s and %s, and a limit is for one", groups[0],
		groups[1])
}
