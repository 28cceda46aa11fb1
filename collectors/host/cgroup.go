package host

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Names of cgroups, as given by runtimes and systemd.
var (
	machineGroup = regexp.MustCompile(`^(?:lxc\.payload\.(.+)|machine-(.+)\.scope|systemd-nspawn@(.+)\.service)$`)
	userGroup    = regexp.MustCompile(`^user(?:\.slice|-(\d+)\.slice|@(\d+)\.service)$`)

	// parents are top-level groups with containers of any name below them.
	parents = []string{"lxc", "lxc.payload", "k8s.io", "default"}

	// runtimes are units that can have pods, containers or jobs below them, also as a snap:
	// snap.microk8s.daemon-kubelite.service.
	runtimes = regexp.MustCompile(`^(?:snap\.[^.]+\.(?:daemon-)?)?(?:containerd|docker|dockerd|cri-docker|crio|podman|` +
		`kubelet|kubelite|k0scontroller|k0sworker|k3s|k3s-agent|rke2-server|rke2-agent|condor)\.service$`)
)

// kinds are sorted from the least to the most specific.
var kinds = []string{KindUser, KindUnit, KindJob, KindSlurm, KindContainer, KindPod}

// ParseCgroup returns the workload of a process of user uid from the content of
// its /proc/PID/cgroup. With cgroups v1 each controller can have its own group:
// the most specific one counts.
//
// The outermost pod, container, job or unit counts, whatever is nested in
// it, so that a user who can create cgroups inside a workload cannot
// impersonate another. A cluster in a container (kind) therefore counts as that
// container. Below user.slice all names belong to the user: there are no pods
// or jobs, and a container's key includes the user's number. Flux alone has jobs
// there, below its own account: see fluxJob.
func ParseCgroup(content string, uid int) Workload {
	best, most, depth := user(strconv.Itoa(uid)), 0, 0
	for line := range strings.Lines(content) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		groups := split(strings.TrimSuffix(parts[2], " (deleted)")) // of a process that has ended in a group that is gone
		w, tells := place(groups, strconv.Itoa(uid)), 0
		if !w.own {
			tells = slices.Index(kinds, w.Kind)
		}
		if tells > most || tells == most && len(groups) > depth {
			best, most, depth = w, tells, len(groups)
		}
	}
	best.UID, best.group = uid, best.Key
	return best
}

// split returns the cgroups of a path, outermost first. A path outside the
// agent's own cgroup namespace begins with "..". A group that runtimes name
// a.slice:runtime:id is a scope in a slice that systemd should have created.
func split(path string) []string {
	var groups []string
	for g := range strings.SplitSeq(path, "/") {
		if g == "" || g == ".." && len(groups) == 0 {
			continue
		}
		slice, unit, unmade := strings.Cut(g, ".slice:")
		if runtime, id, ok := strings.Cut(unit, ":"); unmade && ok {
			groups = append(groups, slice+".slice", runtime+"-"+id+".scope")
		} else {
			groups = append(groups, g)
		}
	}
	return groups
}

// place walks down to the first group that identifies the workload.
func place(groups []string, uid string) Workload {
	w, slice := user(uid), ""
	for i, g := range groups {
		below := groups[i+1:]
		if userGroup.MatchString(g) {
			return own(groups[i:], uid)
		}
		if uid := podUID(g); uid != "" {
			return pod(uid, below)
		}
		if id := container(g); id != "" && !podmanPod(groups[:i], g) {
			return Workload{Kind: KindContainer, Key: key(KindContainer, id), Container: id, ContainerID: id}
		}
		if m := machineGroup.FindStringSubmatch(g); m != nil {
			return machine(m[1] + m[2] + m[3])
		}
		if i == 0 && len(below) > 0 && slices.Contains(parents, g) && container(below[0]) == "" {
			return machine(below[0])
		}
		if job, ok := jobIn(g, below); ok {
			return job
		}
		if strings.HasSuffix(g, ".slice") {
			slice = g
		}
		if isUnit(g) && w.Kind == KindUser {
			w = Workload{Kind: KindUnit, Key: key(KindUnit, g), Unit: field(g), Slice: field(slice)}
		}
		if w.Kind == KindUnit && !runtimes.MatchString(w.Unit) {
			break
		}
	}
	return w
}

// podUID returns the uid of the pod that a group belongs to, or nothing:
// [...-]pod<uid>, in which systemd writes "_" for "-". Static pods have a hash
// as their uid.
func podUID(group string) string {
	name := strings.TrimSuffix(group, ".slice")
	i := strings.LastIndex(name, "pod")
	if i < 0 || i > 0 && name[i-1] != '-' {
		return ""
	}
	uid := strings.ReplaceAll(name[i+len("pod"):], "_", "-")
	if !isHex(uid, 32) && !isUUID(uid) {
		return ""
	}
	return uid
}

func isUUID(s string) bool {
	parts := strings.Split(s, "-")
	return len(parts) == 5 && isHex(parts[0], 8) && isHex(parts[1], 4) && isHex(parts[2], 4) && isHex(parts[3], 4) &&
		isHex(parts[4], 12)
}

// isID reports whether s is a container id.
func isID(s string) bool { return isHex(s, 64) }

// isHex reports whether s is n hexadecimal digits.
func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// container returns the id of a group's container, or nothing:
// [<runtime>-]<id>[.scope]. A group called conmon only monitors a container.
func container(group string) string {
	name := strings.TrimSuffix(group, ".scope")
	runtime, id := name[:max(len(name)-64, 0)], name[max(len(name)-64, 0):]
	if !isID(id) || runtime != "" && !strings.HasSuffix(runtime, "-") || strings.HasSuffix(runtime, "conmon-") {
		return ""
	}
	return id
}

// podmanPod reports whether a group is that of a pod of Podman's, with its
// containers below it. Podman without systemd names a pod's group by its bare id,
// and a container's libpod-<id>.
func podmanPod(above []string, group string) bool {
	return isID(group) && len(above) > 0 && above[len(above)-1] == "libpod_parent"
}

// isUnit reports whether a group is a systemd unit with processes.
func isUnit(group string) bool {
	return strings.HasSuffix(group, ".service") || strings.HasSuffix(group, ".scope")
}

// machine is a container that has only a name.
func machine(name string) Workload {
	return Workload{Kind: KindContainer, Key: key(KindContainer, name), Container: field(name)}
}

// pod is a container of a pod, or another process charged to it. The key
// consists of ids until the name is known.
func pod(uid string, below []string) Workload {
	w := Workload{Kind: KindPod, Key: key(KindPod, uid), PodUID: uid}
	if len(below) > 0 {
		if id := container(below[0]); id != "" {
			w.Key, w.Container, w.ContainerID = key(KindPod, uid, id), id, id
		}
	}
	return w
}

// user is the workload of a user's processes that belong to nothing else.
func user(uid string) Workload {
	return Workload{Kind: KindUser, Key: key(KindUser, uid)}
}

// fluxUnit is a job of Flux: a unit of the service manager of Flux's account.
var fluxUnit = regexp.MustCompile(`^imp-shell-\d+-(.+)\.service$`)

// fluxJob returns the job of Flux whose group this is, or nothing. The owner is a
// system account, and the process another user's: only root moves it there.
func fluxJob(group, owner, uid string) string {
	m := fluxUnit.FindStringSubmatch(group)
	if account, err := strconv.Atoi(owner); m == nil || err != nil || account >= firstUser || owner == uid {
		return ""
	}
	return m[1]
}

// firstUser is the first UID that is no system account.
const firstUser = 1000

// own is the workload of a user's processes below user.slice. groups begins
// with that group, or with the nearest visible one.
func own(groups []string, uid string) Workload {
	owner, unit, slice := "", "", ""
	for i, g := range groups {
		if m := userGroup.FindStringSubmatch(g); m != nil && owner == "" {
			owner = m[1] + m[2]
		}
		if id := container(g); id != "" && !podmanPod(groups[:i], g) {
			return Workload{Kind: KindContainer, Key: key(KindContainer, cmp.Or(owner, uid), id), Container: id,
				ContainerID: id, own: true}
		}
		if strings.HasSuffix(g, ".slice") {
			slice = g
		}
		if isUnit(g) {
			unit = g
		}
		if job := fluxJob(g, owner, uid); job != "" {
			return Workload{Kind: KindJob, Key: key(KindJob, "flux", job)}
		}
	}
	w := user(cmp.Or(owner, uid))
	w.Unit, w.Slice, w.own = field(unit), field(slice), true
	return w
}
