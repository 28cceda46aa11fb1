package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// The identity of the process in these tests.
const (
	ordinary = "Uid:\t997\t997\t997\t997\nGid:\t995\t995\t995\t995\nGroups:\t44 995 \nCapEff:\t0000000000000000\n"
	superior = "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t\nCapEff:\t000001ffffffffff\n"
)

// files are the files of a host, plus those of a test.
func files(me string, more fstest.MapFS) fstest.MapFS {
	own := func(mode fs.FileMode, uid, gid uint32) *fstest.MapFile {
		return &fstest.MapFile{Mode: mode, Sys: &syscall.Stat_t{Uid: uid, Gid: gid}}
	}
	root := fstest.MapFS{
		"proc/self/status":            {Data: []byte(me)},
		"etc/passwd":                  {Data: []byte("root:x:0:0::/root:/bin/sh\n" + "gpusteward:x:997:995::/:/bin/false\n")},
		"etc/group":                   {Data: []byte("root:x:0:\nvideo:x:44:\nrender:x:104:\n")},
		"dev":                         own(fs.ModeDir|0o755, 0, 0),
		"dev/open":                    own(fs.ModeDevice|fs.ModeCharDevice|0o666, 0, 0),
		"dev/video":                   own(fs.ModeDevice|fs.ModeCharDevice|0o660, 0, 44),
		"dev/render":                  own(fs.ModeDevice|fs.ModeCharDevice|0o660, 0, 104),
		"dev/root":                    own(fs.ModeDevice|fs.ModeCharDevice|0o600, 0, 0),
		"dev/readable":                own(fs.ModeDevice|fs.ModeCharDevice|0o644, 0, 0),
		"dev/kmsg":                    own(fs.ModeDevice|fs.ModeCharDevice|0o644, 0, 0),
		"var/lib":                     own(fs.ModeDir|0o755, 0, 0),
		"var/lib/gpusteward":          own(fs.ModeDir|0o700, 997, 995),
		"var/lib/closed":              own(fs.ModeDir|0o700, 0, 0),
		"var/lib/closed/file":         own(0o644, 997, 995),
		"run/docker.sock":             own(fs.ModeSocket|0o660, 0, 104),
		"var/lib/gpusteward/foreign":  own(0o600, 0, 0),
		"var/lib/gpusteward/readonly": own(0o444, 997, 995),
	}
	for name, file := range more {
		root[name] = file
	}
	return root
}

func TestExplain(t *testing.T) {
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	selinux := fstest.MapFS{"sys/fs/selinux/enforce": text("1"),
		"proc/self/attr/current": text("system_u:system_r:container_t:s0:c1,c2\x00")}
	permissive := fstest.MapFS{"sys/fs/selinux/enforce": text("0"),
		"proc/self/attr/current": text("system_u:system_r:container_t:s0:c1,c2\x00")}
	apparmor := fstest.MapFS{"sys/module/apparmor/parameters/enabled": text("Y\n"),
		"proc/self/attr/current": text("docker-default (enforce)\n")}
	unconfined := fstest.MapFS{"sys/module/apparmor/parameters/enabled": text("Y\n"),
		"proc/self/attr/current": text("unconfined\n")}
	restricted := fstest.MapFS{"proc/sys/kernel/dmesg_restrict": text("1\n")}
	both := Reads | Writes
	for name, c := range map[string]struct {
		me   string
		more fstest.MapFS
		path string
		err  error
		ways int
		want string // "" means that there is nothing to say
	}{
		"the group may": {ordinary, nil, "/dev/render", unix.EACCES, both,
			"/dev/render belongs to root, group render, mode 0660, and this process runs as gpusteward: " +
				"SupplementaryGroups=render in the unit gives gpusteward access"},
		"only root may": {ordinary, nil, "/dev/root", unix.EACCES, both,
			"/dev/root belongs to root, group root, mode 0600, and this process runs as gpusteward: chown or " +
				"chmod it for gpusteward"},
		"read alone is allowed": {ordinary, nil, "/dev/readable", unix.EACCES, both, "mode 0644"},
		"but it was read": {ordinary, selinux, "/dev/readable", unix.EACCES, Reads,
			"SELinux denies it to system_u:system_r:container_t:s0:c1,c2: ausearch -m avc -ts recent"},
		"mine by group, SELinux": {ordinary, selinux, "/dev/video", unix.EACCES, both, "SELinux denies it"},
		"root, SELinux":          {superior, selinux, "/dev/root", unix.EACCES, both, "SELinux denies it"},
		"SELinux, permissive": {superior, permissive, "/dev/root", unix.EACCES, both,
			"an access control list (getfacl)"},
		"AppArmor": {superior, apparmor, "/dev/root", unix.EACCES, both,
			"AppArmor denies it to the profile docker-default (enforce): journalctl -k -g apparmor"},
		"AppArmor, unconfined": {superior, unconfined, "/dev/root", unix.EACCES, both,
			"an access control list (getfacl)"},
		"mode before AppArmor": {ordinary, apparmor, "/dev/root", unix.EACCES, both, "chown or chmod"},
		"device cgroup": {superior, apparmor, "/dev/open", unix.EPERM, both,
			"systemctl show -p DevicePolicy -p DeviceAllow"},
		"an attribute": {superior, nil, "/var/lib/gpusteward/foreign", unix.EPERM, both, "lsattr"},
		"kernel log": {ordinary, restricted, "/dev/kmsg", unix.EPERM, Reads,
			"kernel.dmesg_restrict is 1 and this process lacks CAP_SYSLOG"},
		"kernel log of root": {superior, restricted, "/dev/kmsg", unix.EPERM, Reads, "DeviceAllow"},
		"a directory on the way": {ordinary, nil, "/var/lib/closed/file", unix.EACCES, both,
			"/var/lib/closed belongs to root, group root, mode 0700"},
		"cannot be created": {ordinary, nil, "/var/lib/new", unix.EACCES, both,
			"/var/lib belongs to root, group root, mode 0755"},
		"could be created": {ordinary, selinux, "/var/lib/gpusteward/new", unix.EACCES, both, "SELinux denies it"},
		"a file of another": {ordinary, nil, "/var/lib/gpusteward/foreign", unix.EACCES, Reads,
			"foreign belongs to root"},
		"my file, not writable": {ordinary, nil, "/var/lib/gpusteward/readonly", unix.EACCES, both, "mode 0444"},
		"read-only": {superior, nil, "/var/lib/gpusteward/new", unix.EROFS, both,
			"RuntimeDirectory= or ReadWritePaths="},
		"full":              {superior, nil, "/var/lib/gpusteward/new", unix.ENOSPC, both, "df -i"},
		"quota":             {superior, nil, "/var/lib/gpusteward/new", unix.EDQUOT, both, "df -i"},
		"files":             {superior, nil, "/dev/open", unix.EMFILE, both, "LimitNOFILE="},
		"missing":           {superior, nil, "/dev/none", unix.ENOENT, both, ""},
		"a relative path":   {ordinary, selinux, "relative", unix.EACCES, both, ""},
		"the docker socket": {ordinary, nil, "/run/docker.sock", unix.EACCES, both, "SupplementaryGroups=render"},
		"unknown identity":  {"", nil, "/dev/open", unix.EACCES, both, "an access control list (getfacl)"},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, err := range map[string]error{
				"file":   &fs.PathError{Op: "open", Path: c.path, Err: c.err},
				"rename": &os.LinkError{Op: "rename", Old: "x", New: c.path, Err: c.err},
				"socket": &net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: c.path, Net: "unix"},
					Err: os.NewSyscallError("connect", c.err)},
			} {
				err = fmt.Errorf("do it: %w", err)
				got := explain(files(c.me, c.more), err, c.ways)
				added := strings.TrimPrefix(got.Error(), err.Error())
				if !errors.Is(got, c.err) || (c.want == "") != (added == "") || !strings.Contains(added, c.want) {
					t.Errorf("%s: %q, want %q", kind, got, c.want)
				}
			}
		})
	}
	fixture.Must(t, Explain(nil, both))
	fixture.Equal(t, Explain(unix.EACCES, both).Error(), unix.EACCES.Error(), "an error without a path became")
}
