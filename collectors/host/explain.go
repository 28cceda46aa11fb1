package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ways to use a path, as mode bits.
const (
	Reads  = 4
	Writes = 2
)

// Explain adds to a failure to use a path the obstacle and its remedy: a mode,
// a security module, a cgroup, a read-only or full disk. Ways are the attempted
// accesses, Reads or Writes. Other errors, and nil, are returned unchanged.
func Explain(err error, ways int) error { return explain(os.DirFS("/"), err, ways) }

// explain is Explain for a host whose files are below root.
func explain(root fs.FS, err error, ways int) error {
	at, why := pathOf(err), ""
	switch {
	case errors.Is(err, unix.EMFILE):
		why = "raise LimitNOFILE= of the unit, or ulimit -n"
	case at == "":
	case errors.Is(err, unix.EROFS):
		why = "it is mounted read-only, or the unit sees it so: remount it, or add it to StateDirectory=, " +
			"RuntimeDirectory= or ReadWritePaths="
	case Full(err):
		why = "the disk, its inodes or a quota are exhausted: see df and df -i"
	case errors.Is(err, fs.ErrPermission):
		why = denied(root, at, ways, errors.Is(err, unix.EPERM))
	}
	if why == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, why)
}

// Full reports whether a file cannot be created or written because there is no room for it: space,
// inodes or a quota are exhausted.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// pathOf returns the path in an error, or the empty string.
func pathOf(err error) string {
	var file *fs.PathError
	var link *os.LinkError
	var socket *net.OpError
	at := ""
	switch {
	case errors.As(err, &file):
		at = file.Path
	case errors.As(err, &link):
		at = link.New
	case errors.As(err, &socket) && socket.Addr != nil && strings.HasPrefix(socket.Net, "unix"):
		at = socket.Addr.String()
	}
	if !path.IsAbs(at) {
		return ""
	}
	return path.Clean(at)
}

// denied says what denies this process a path. It looks at the mode of the path
// and of its parent directories first; if these allow the access, something
// else denies it.
func denied(root fs.FS, at string, ways int, eperm bool) string {
	me := whoAmI(root)
	target, err := fs.Stat(root, below(at))
	through, want := []string{}, 1
	for dir := path.Dir(at); ; dir = path.Dir(dir) {
		if through = append(through, dir); dir == "/" {
			break
		}
	}
	for i, dir := range slices.Backward(through) {
		if i == 0 && errors.Is(err, fs.ErrNotExist) {
			want |= Writes // the file was to be created there
		}
		if info, err := fs.Stat(root, below(dir)); err == nil {
			if text := me.barred(root, dir, info, want); text != "" {
				return text
			}
		}
	}
	if err == nil {
		if text := me.barred(root, at, target, ways); text != "" {
			return text
		}
	}
	device := err == nil && target.Mode()&fs.ModeDevice != 0
	label, _ := line(root, "proc/self/attr/current")
	label = strings.Trim(label, "\x00\n")
	on := func(file, value string) bool { v, err := line(root, file); return err == nil && v == value }
	switch {
	case at == "/dev/kmsg" && on("proc/sys/kernel/dmesg_restrict", "1") && me.capabilities&(1<<unix.CAP_SYSLOG) == 0:
		return "kernel.dmesg_restrict is 1 and this process lacks CAP_SYSLOG: add AmbientCapabilities=CAP_SYSLOG " +
			"to the unit"
	case device && eperm:
		return "the device policy of its cgroup denies it: see systemctl show -p DevicePolicy -p DeviceAllow of " +
			"the unit; containers get GPUs through --gpus all, other devices through --device"
	case on("sys/fs/selinux/enforce", "1"):
		return fmt.Sprintf("its mode allows it, so SELinux denies it to %s: ausearch -m avc -ts recent shows the "+
			"missing rule", label)
	case on("sys/module/apparmor/parameters/enabled", "Y") && label != "" && label != "unconfined":
		return fmt.Sprintf("its mode allows it, so AppArmor denies it to the profile %s: journalctl -k -g "+
			"apparmor shows it", label)
	}
	return "its mode allows it: an access control list (getfacl), an attribute (lsattr) or a security module denies it"
}

// below returns an absolute path as a path below the root.
func below(at string) string { return path.Join(".", at) }

// identity is this process as the kernel sees it.
type identity struct {
	uid          int
	groups       []int
	capabilities uint64
	unknown      bool
}

func whoAmI(root fs.FS) (me identity) {
	status, err := fs.ReadFile(root, "proc/self/status")
	me.unknown = err != nil
	for l := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(l, ":")
		fields := strings.Fields(value)
		number := func(i int) int {
			if i >= len(fields) {
				return -1
			}
			n, _ := strconv.Atoi(fields[i])
			return n
		}
		switch name {
		case "Uid":
			me.uid = number(1) // the effective one
		case "Gid":
			me.groups = append(me.groups, number(1))
		case "Groups":
			for i := range fields {
				me.groups = append(me.groups, number(i))
			}
		case "CapEff":
			me.capabilities, _ = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return me
}

// barred says how the mode of a file denies me the access that I want, three
// mode bits; empty if it does not.
func (me identity) barred(root fs.FS, at string, info fs.FileInfo, want int) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	reads := want&Writes == 0 && (want&1 == 0 || info.IsDir())
	if !ok || me.unknown || me.capabilities&(1<<unix.CAP_DAC_OVERRIDE) != 0 ||
		reads && me.capabilities&(1<<unix.CAP_DAC_READ_SEARCH) != 0 {
		return ""
	}
	mode, group := int(info.Mode().Perm()), slices.Contains(me.groups, int(stat.Gid))
	have := mode
	switch {
	case me.uid == int(stat.Uid):
		have >>= 6
	case group:
		have >>= 3
	}
	if have&want == want {
		return ""
	}
	own, owner, owners := nameOf(root, "etc/passwd", me.uid), nameOf(root, "etc/passwd", int(stat.Uid)),
		nameOf(root, "etc/group", int(stat.Gid))
	advice := fmt.Sprintf("chown or chmod it for %s", own)
	if mode>>3&want == want && !group {
		advice = fmt.Sprintf("SupplementaryGroups=%s in the unit gives %s access", owners, own)
	}
	return fmt.Sprintf("%s belongs to %s, group %s, mode %04o, and this process runs as %s: %s", at, owner, owners,
		mode, own, advice)
}

// nameOf returns the name that a file such as /etc/passwd gives a number, or
// the number.
func nameOf(root fs.FS, file string, id int) string {
	text, _ := fs.ReadFile(root, file) // a missing name is an answer
	for l := range strings.Lines(string(text)) {
		if parts := strings.Split(l, ":"); len(parts) > 2 && parts[2] == strconv.Itoa(id) {
			return parts[0]
		}
	}
	return strconv.Itoa(id)
}
