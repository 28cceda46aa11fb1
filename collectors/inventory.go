package collectors

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// saveAgain is how long a state directory that cannot be written is left alone.
const saveAgain = 10 * time.Second

// maxKnown bounds the GPUs that are remembered; a host has sixteen.
const maxKnown = 64

// An inventory is every GPU that this host was ever seen to have, kept in a
// file so that one which is missing after a reboot is missed. Another GPU in
// the same slot takes its predecessor's place. Safe for concurrent use.
type inventory struct {
	path    string    // empty: in memory only
	spoiled bool      // the file at path could not be read: it is to be set aside
	failed  time.Time // when it last could not be written, and that was told; zero: it can be

	mu    sync.Mutex
	known []*knownGPU // by index
	dirty bool
}

// A knownGPU is one of them, with what outlives the opening of its handle.
type knownGPU struct {
	gpu.ID
	met    bool                              // by this process
	totals map[*Collector]map[string]float64 // of Readings.Add; the reader's
}

// inventoryFile is the file: the GPUs, by index. Whoever takes a GPU out for
// good takes it out of this file too, while the agent is stopped.
type inventoryFile struct {
	GPUs []gpu.ID `json:"gpus"`
}

func (f inventoryFile) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "\t")
	return e.Encode(f)
}

// load reads dir's inventory. One that cannot be read is told of, and begun anew.
func (v *inventory) load(dir string, log *slog.Logger) {
	if dir == "" {
		return
	}
	v.path = filepath.Join(dir, "inventory.json")
	text, err := os.ReadFile(v.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var file inventoryFile
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		v.spoiled = true
		log.Warn("inventory not read, beginning a new one: a GPU that is missing already is not missed", "file", v.path, "aside", v.path+".bad", "err", host.Explain(err, host.Reads))
		return
	}
	for _, id := range file.GPUs {
		if id.UUID != "" && len(v.known) < maxKnown {
			v.known = append(v.known, &knownGPU{ID: id, totals: map[*Collector]map[string]float64{}})
		}
	}
}

// saw notes that there is such a GPU, and returns what is known of it.
func (v *inventory) saw(id gpu.ID) *knownGPU {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, k := range v.known {
		if k.UUID == id.UUID {
			v.dirty = v.dirty || k.ID != id
			k.ID, k.met = id, true
			return k
		}
	}
	v.known = slices.DeleteFunc(v.known, func(k *knownGPU) bool { return k.PCI == id.PCI && id.PCI != "" })
	if len(v.known) == maxKnown {
		v.known = v.known[1:]
	}
	k := &knownGPU{ID: id, met: true, totals: map[*Collector]map[string]float64{}}
	v.known = append(v.known, k)
	v.dirty = true
	return k
}

// all returns the known GPUs, by index.
func (v *inventory) all() []gpu.ID {
	v.mu.Lock()
	defer v.mu.Unlock()
	var ids []gpu.ID
	for _, k := range v.known {
		ids = append(ids, k.ID)
	}
	slices.SortStableFunc(ids, func(a, b gpu.ID) int { return cmp.Compare(a.Index, b.Index) })
	return ids
}

// met reports whether this process has had to do with the GPU.
func (v *inventory) met(uuid string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(v.known, func(k *knownGPU) bool { return k.UUID == uuid && k.met })
}

// save writes the file if anything is new. A failure is told of once, and it
// is tried again: what cannot be kept is known until then.
func (v *inventory) save(log *slog.Logger) {
	if v.path == "" || !v.failed.IsZero() && time.Since(v.failed) < saveAgain {
		return
	}
	v.mu.Lock()
	dirty := v.dirty
	v.dirty = false
	v.mu.Unlock()
	if !dirty {
		return
	}
	var err error
	if v.spoiled {
		err = host.SetAside(v.path)
	}
	if err == nil {
		v.spoiled = false
		err = host.ReplaceFile(v.path, host.StateMode, inventoryFile{v.all()}.write)
	}
	switch told := !v.failed.IsZero(); {
	case err == nil && told:
		v.failed = time.Time{}
		log.Info("inventory kept again", "file", v.path)
	case err != nil:
		v.mu.Lock()
		v.dirty = true
		v.mu.Unlock()
		if v.failed = time.Now(); !told {
			log.Warn("inventory not kept, trying again: a GPU that is missing at the next start will not be missed", "err", err)
		}
	}
}

// forget drops a GPU that was taken out for good.
func (v *inventory) forget(uuid string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := len(v.known)
	v.known = slices.DeleteFunc(v.known, func(k *knownGPU) bool { return k.UUID == uuid })
	v.dirty = v.dirty || len(v.known) != before
}

// Forget has the host no longer miss a GPU that was taken out. One that is
// still there is met again.
func (h *Host) Forget(uuid string) { h.inventory.forget(uuid) }
