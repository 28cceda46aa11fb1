package preload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"gpusteward/collectors/host"
)

// specification is the file name of the hook's CDI specification.
const specification = "gpusteward.dev-hook.json"

// InstallOptions say what a host gets for its containers; empty fields change
// nothing.
type InstallOptions struct {
	Dir     string // gets this program and the hook; created if necessary
	CDI     string // a directory of CDI specifications: gets the hook's, which is in Dir then
	Library string // the hook; empty: it is looked for
	Socket  string // of the broker, as the containers see it

	Own   []string // an agent's directories: created, and given to Owner with their files
	Owner int      // a user's number; also the group's
}

// Install puts the hook where this host's containers can use it, and creates
// what an agent in a container cannot create without root. It changes only what
// differs, so it can run at each start. It replaces whole files: running
// programs keep those that they have mapped.
func Install(o InstallOptions) error {
	switch {
	case o.Dir == "" && len(o.Own) == 0:
		return errors.New("install: nothing to do: give DIR for the hook and this program, or --owner=UID for the " +
			"agent's directories")
	case o.CDI != "" && o.Dir == "":
		return errors.New("install: --cdi requires DIR, the directory of the hook")
	case o.Dir != "" && !filepath.IsAbs(o.Dir):
		return fmt.Errorf("install: %q is not an absolute path, which containers need", o.Dir)
	case strings.ContainsAny(o.Dir, ": "):
		return fmt.Errorf("install: %q: the loader would split this path at its colon or space: use another path",
			o.Dir)
	}
	for _, dir := range o.Own {
		if err := give(dir, o.Owner); err != nil {
			return fmt.Errorf("install: give %s to user %d: %w", dir, o.Owner, err)
		}
	}
	if o.Dir == "" {
		return nil
	}
	library, err := findLibrary(o.Library)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	for name, from := range map[string]string{Library: library, "gpusteward": "/proc/self/exe"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = replace(filepath.Join(o.Dir, name), text, 0o755)
		}
		if err != nil {
			return fmt.Errorf("install: %w", err)
		}
	}
	if o.CDI == "" {
		return nil
	}
	text, err := json.MarshalIndent(hookDevice(o.Dir, o.Socket), "", "  ")
	if err == nil {
		err = replace(filepath.Join(o.CDI, specification), append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	return nil
}

// A cdiSpec is a specification of the Container Device Interface, 0.6.0: the
// changes that a runtime makes to a container that asks for a device,
// gpusteward.dev/hook=hook.
type cdiSpec struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []cdiDevice `json:"devices"`
}

type cdiDevice struct {
	Name  string   `json:"name"`
	Edits cdiEdits `json:"containerEdits"`
}

type cdiEdits struct {
	Env    []string   `json:"env"`
	Mounts []cdiMount `json:"mounts"`
}

type cdiMount struct {
	Host      string   `json:"hostPath"`
	Container string   `json:"containerPath"`
	Options   []string `json:"options"`
}

// hookDevice is the hook in dir as a device. It mounts directories, because a
// mounted file would stay old after an update, and a mounted socket would stay
// with a broker that has ended.
func hookDevice(dir, socket string) cdiSpec {
	mount := func(path string) cdiMount {
		return cdiMount{Host: path, Container: path, Options: []string{"ro", "nosuid", "nodev", "bind"}}
	}
	return cdiSpec{Version: "0.6.0", Kind: "gpusteward.dev/hook", Devices: []cdiDevice{{Name: "hook", Edits: cdiEdits{
		Env:    []string{envPreload + "=" + filepath.Join(dir, Library), envSocket + "=" + socket},
		Mounts: []cdiMount{mount(dir), mount(filepath.Dir(socket))},
	}}}}
}

// replace writes text to the file at path, unless it is there already.
func replace(path string, text []byte, mode fs.FileMode) error {
	if info, err := os.Lstat(path); err == nil && info.Mode() == mode {
		if is, err := os.ReadFile(path); err == nil && bytes.Equal(is, text) {
			return nil
		}
	}
	return host.ReplaceFile(path, mode, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// give creates dir, and gives it and its files to a user. The files may be
// root's, from an agent that ran as root; another user's files are left alone.
func give(dir string, owner int) error {
	if owner <= 0 {
		return errors.New("--owner requires a user's number above 0")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return host.Explain(err, host.Reads|host.Writes)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	names := []string{"."}
	// Root without CAP_DAC_OVERRIDE can check this, because the directory is
	// open to all; its files are not.
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	for _, name := range names {
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		is := info.Sys().(*syscall.Stat_t)
		switch {
		case int(is.Uid) == owner && int(is.Gid) == owner, name != "." && is.Nlink > 1:
			// a second name for the file may be another user's
		case is.Uid != 0 && int(is.Uid) != owner:
			return fmt.Errorf("%s is user %d's: does another agent run on this host, from a package?",
				filepath.Join(dir, name), is.Uid)
		default:
			if err := root.Lchown(name, owner, owner); err != nil {
				return fmt.Errorf("%w; it requires CAP_CHOWN", err)
			}
		}
	}
	return nil
}
