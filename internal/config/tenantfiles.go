package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"gpusteward/collectors/host"
	"gpusteward/internal/input"
)

// Bounds of the files of tenants.
const (
	mostTenantFiles   = 1024
	longestTenantFile = 256 << 10 // bytes
)

// A TenantFile is a file *.yml or *.yaml of enforcer.tenants_dirs: a list of tenants.
type TenantFile struct {
	Path    string
	text    string
	tenants []Tenant
	root    yaml.Node
}

// readTenantFile reads a file without checking its tenants' terms.
func readTenantFile(path string) (*TenantFile, error) {
	text, err := host.ReadTrusted(path, longestTenantFile)
	if err != nil {
		return nil, err
	}
	f := &TenantFile{Path: path, text: string(text)}
	return f, decodeStrict(path, text, &f.tenants, &f.root)
}

// checkWith returns an error for each bad key of the configuration and the
// files together. If the key is in a file, the error names the file and the
// line.
func (c Enforcer) checkWith(files ...*TenantFile) error {
	var wrong input.Errors
	for _, err := range input.Each(c.Table(files).Check()) {
		at := slices.IndexFunc(files, func(f *TenantFile) bool { return strings.HasPrefix(err.Error(), f.Path+"[") })
		if at < 0 {
			wrong.Below("enforcer.", err)
			continue
		}
		f := files[at]
		problem := strings.TrimPrefix(err.Error(), f.Path)
		key, _, _ := strings.Cut(problem, ":")
		wrong.If(true, "%s:%d: %s", f.Path, lineOf(&f.root, strings.TrimPrefix(key, "[")), problem)
	}
	return wrong.Err()
}

// A stamp changes when a file changes.
type stamp struct {
	inode          uint64
	size           int64
	written, moved unix.Timespec
}

// TenantFiles are the files of tenants in force: those that are valid together
// with the configuration. A bad file never replaces a good one. It is safe for
// concurrent use.
type TenantFiles struct {
	Log *slog.Logger

	mu      sync.Mutex
	stamps  map[string]stamp
	force   map[string]*TenantFile
	refused map[string]string // reasons by path
}

// Look looks for new, changed and deleted files, and for another configuration.
// It returns the files in force, by path, and whether they changed.
func (t *TenantFiles) Look(c Enforcer, again bool) (files []*TenantFile, changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamps, refused := stampsOf(c.TenantsDirs)
	if !again && maps.Equal(stamps, t.stamps) && t.force != nil {
		return inOrder(t.force), false
	}
	found, kept := map[string]*TenantFile{}, map[string]*TenantFile{}
	for path := range stamps {
		before := t.force[path]
		if before != nil {
			kept[path] = before
		}
		f, err := readTenantFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
			delete(kept, path)
		case err != nil:
			refused[path] = err.Error()
			if before != nil {
				found[path] = before
			}
		case before != nil && before.text == f.text:
			found[path] = before
		default:
			found[path] = f
		}
	}
	was := t.force
	t.stamps, t.force = stamps, settle(c, kept, found, refused)
	for _, path := range slices.Sorted(maps.Keys(refused)) {
		if refused[path] != t.refused[path] {
			consequence := "none of its tenants is in force"
			if t.force[path] != nil {
				consequence = "its previous tenants stay in force"
			}
			t.Log.Error("file of tenants refused, "+consequence, "file", path, "err", refused[path])
		}
	}
	t.refused = refused
	return inOrder(t.force), was == nil || !maps.Equal(was, t.force)
}

// inOrder returns files sorted by path.
func inOrder(files map[string]*TenantFile) []*TenantFile {
	return slices.SortedFunc(maps.Values(files), func(a, b *TenantFile) int { return strings.Compare(a.Path, b.Path) })
}

// settle returns the files that are in force from now on. If all files are
// valid together, that is all of them. Otherwise the previous ones stay, and
// the others are added by path if they are valid beside those. The reasons
// against the rest go into refused.
func settle(c Enforcer, kept, found map[string]*TenantFile, refused map[string]string) map[string]*TenantFile {
	if c.checkWith(inOrder(found)...) == nil {
		return found
	}
	if c.checkWith(inOrder(kept)...) != nil { // with another configuration
		kept = map[string]*TenantFile{}
	}
	why := map[string]string{}
	for came := true; came; { // an added one may have made room for another
		came = false
		for _, f := range inOrder(found) {
			if kept[f.Path] == f {
				continue
			}
			others := maps.Clone(kept)
			delete(others, f.Path)
			if err := c.checkWith(append(inOrder(others), f)...); err != nil {
				why[f.Path] = err.Error()
				continue
			}
			kept[f.Path], came = f, true
			delete(why, f.Path)
		}
	}
	maps.Copy(refused, why)
	return kept
}

// stampsOf returns the files in the directories, any of which may be absent. It
// also returns the directories that cannot be read, with the reasons.
func stampsOf(dirs []string) (stamps map[string]stamp, refused map[string]string) {
	stamps, refused = map[string]stamp{}, map[string]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			refused[dir] = err.Error()
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if ext := filepath.Ext(path); ext != ".yml" && ext != ".yaml" || strings.HasPrefix(e.Name(), ".") {
				continue
			}
			if len(stamps) == mostTenantFiles {
				refused[dir] = fmt.Sprintf("more than %d files are not read", mostTenantFiles)
				break
			}
			var s unix.Stat_t
			if unix.Stat(path, &s) == nil {
				stamps[path] = stamp{s.Ino, s.Size, s.Mtim, s.Ctim}
			} else {
				stamps[path] = stamp{} // a dangling link; reading it fails
			}
		}
	}
	return stamps, refused
}

// Refusals returns how many files the last look refused.
func (t *TenantFiles) Refusals() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.refused)
}

// Problems returns the reasons for refused files, sorted by path.
func (t *TenantFiles) Problems() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []error
	for _, path := range slices.Sorted(maps.Keys(t.refused)) {
		why := t.refused[path]
		if !strings.HasPrefix(why, path) {
			why = path + ": " + why
		}
		all = append(all, errors.New(why))
	}
	return errors.Join(all...)
}
