package preload

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

func inode(t *testing.T, path string) *syscall.Stat_t {
	t.Helper()
	info := fixture.Value(os.Lstat(path))(t)
	return info.Sys().(*syscall.Stat_t)
}

// Install changes only what is wrong, and running programs keep the library that they loaded.
func TestInstall(t *testing.T) {
	t.Parallel()
	old, dir := hook(t), filepath.Join(t.TempDir(), "a/b")
	o := InstallOptions{Dir: dir, Library: old, CDI: filepath.Join(t.TempDir(), "cdi"), Socket: "/run/x/broker.sock"}
	installed := filepath.Join(dir, Library)
	is := func(library string) {
		t.Helper()
		fixture.Must(t, Install(o))
		for path, source := range map[string]string{installed: library,
			filepath.Join(dir, "gpusteward"): "/proc/self/exe"} {
			want, err1 := os.ReadFile(source)
			got, err2 := os.ReadFile(path)
			if err := errors.Join(err1, err2); err != nil || !bytes.Equal(want, got) ||
				inode(t, path).Mode&0o7777 != 0o755 {
				t.Errorf("%s is not %s (%v), mode %o", path, source, err, inode(t, path).Mode)
			}
		}
	}
	is(old)
	before := inode(t, installed).Ino
	is(old)
	fixture.Equal(t, inode(t, installed).Ino, before, "the installer wrote an existing file again")
	fixture.Must(t, os.Chmod(installed, 0o600))
	is(old)

	running := fixture.Value(os.Open(installed))(t)
	defer running.Close()
	fixture.Must(t, os.WriteFile(installed+".new", []byte("half of it"), 0o400)) // an interrupted installation
	o.Library = build(t, Library, "int gs_another[9] = {1};", "-shared", "-fPIC")
	is(o.Library)
	want, err1 := os.ReadFile(old)
	got, err2 := io.ReadAll(running)
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(want, got) {
		t.Errorf("a program that runs has not the library that it began with any more (%v)", err)
	}
	text, err := os.ReadFile(filepath.Join(o.CDI, "gpusteward.dev-hook.json"))
	fixture.If(t, err != nil || !strings.Contains(string(text), `"LD_PRELOAD=`+installed+`"`) ||
		!strings.Contains(string(text), `"GPUSTEWARD_SOCKET=/run/x/broker.sock"`), "%s, %v", text, err)
	for _, d := range []string{dir, o.CDI} {
		left, err := filepath.Glob(d + "/*.new")
		fixture.If(t, err != nil || len(left) > 0, "%q, %v are left over", left, err)
	}
}

func TestInstallSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	library, file := hook(t), filepath.Join(t.TempDir(), "file")
	fixture.Must(t, os.WriteFile(file, nil, 0o644))
	for name, c := range map[string]struct {
		o    InstallOptions
		want string
	}{
		"nothing":       {InstallOptions{}, "give DIR for the hook and this program"},
		"relative":      {InstallOptions{Dir: "lib"}, `"lib" is not an absolute path`},
		"a colon":       {InstallOptions{Dir: "/a:b"}, "would split this path"},
		"only CDI":      {InstallOptions{CDI: "/etc/cdi", Own: []string{"/x"}}, "--cdi requires DIR"},
		"no library":    {InstallOptions{Dir: "/x", Library: "/none.so"}, "the hook was not found at"},
		"no directory":  {InstallOptions{Dir: file + "/lib", Library: library}, "not a directory"},
		"root's state":  {InstallOptions{Own: []string{file + "-state"}}, "a user's number above 0"},
		"state, a file": {InstallOptions{Own: []string{file}, Owner: 65532}, "not a directory"},
	} {
		fixture.Fails(t, Install(c.o), c.want, "%s", name)
	}
	if os.Getuid() != 0 {
		return // only root can mount a read-only file system
	}
	readOnly := t.TempDir()
	fixture.Must(t, unix.Mount("tmpfs", readOnly, "tmpfs", unix.MS_RDONLY, ""))
	defer func() { _ = unix.Unmount(readOnly, unix.MNT_DETACH) }()
	for _, dir := range []string{readOnly, readOnly + "/lib"} {
		err := Install(InstallOptions{Dir: dir, Library: library})
		fixture.If(t, err == nil || !strings.Contains(err.Error(), "read-only file system: it is mounted read-only") ||
			!strings.Contains(err.Error(), readOnly), "%v", err)
	}
}

// The state directory becomes the user's; files outside of it stay as they are.
func TestInstallGivesTheState(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	const user, another = 65532, 65533
	root := t.TempDir()
	path := func(name string) string { return filepath.Join(root, name) }
	state := path("state")
	o := InstallOptions{Own: []string{state}, Owner: user}
	for range 2 {
		if err := Install(o); err != nil || inode(t, state).Uid != user || inode(t, state).Gid != user ||
			inode(t, state).Mode&0o777 != 0o755 {
			t.Fatalf("%v, %+v", err, inode(t, state))
		}
	}
	// An agent that ran as root left these files, or the user put them there.
	err := errors.Join(os.WriteFile(path("state/health.json"), nil, 0o640), os.WriteFile(path("secret"), nil, 0o600),
		os.Symlink(path("secret"), path("state/link")), os.Link(path("secret"), path("state/second")))
	fixture.Must(t, err)
	if err := Install(o); err != nil || inode(t, path("state/health.json")).Uid != user {
		t.Errorf("%v, %+v", err, inode(t, path("state/health.json")))
	}
	fixture.Equal(t, inode(t, path("secret")).Uid, 0, "the owner of a file elsewhere is")
	fixture.Must(t, os.Chown(state, another, another))
	fixture.Fails(t, Install(o), "user 65533's: does another agent run on this host", "in another's directory")
}
