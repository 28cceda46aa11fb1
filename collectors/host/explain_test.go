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
	errnos := map[string]syscall.Errno{"EACCES": unix.EACCES, "EPERM": unix.EPERM, "EROFS": unix.EROFS,
		"ENOSPC": unix.ENOSPC, "EDQUOT": unix.EDQUOT, "EMFILE": unix.EMFILE, "ENOENT": unix.ENOENT}
	systems := map[string]fstest.MapFS{"selinux": selinux, "permissive": permissive, "apparmor": apparmor,
		"unconfined": unconfined, "restricted": restricted}
	for _, c := range fixture.Rows(t, "testdata/explain.tsv") {
		me := map[string]string{"ordinary": ordinary, "superior": superior}[c[1]]
		path, errno, want := c[3], errnos[c[4]], strings.TrimPrefix(c[6], "nothing")
		ways := map[string]int{"reads": Reads, "both": both}[c[5]]
		t.Run(c[0], func(t *testing.T) {
			for kind, err := range map[string]error{
				"file":   &fs.PathError{Op: "open", Path: path, Err: errno},
				"rename": &os.LinkError{Op: "rename", Old: "x", New: path, Err: errno},
				"socket": &net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: path, Net: "unix"},
					Err: os.NewSyscallError("connect", errno)},
			} {
				err = fmt.Errorf("do it: %w", err)
				got := explain(files(me, systems[c[2]]), err, ways)
				added := strings.TrimPrefix(got.Error(), err.Error())
				if !errors.Is(got, errno) || (want == "") != (added == "") || !strings.Contains(added, want) {
					t.Errorf("%s: %q, want %q", kind, got, want)
				}
			}
		})
	}
	fixture.Must(t, Explain(nil, both))
	fixture.Equal(t, Explain(unix.EACCES, both).Error(), unix.EACCES.Error(), "an error without a path became")
}
