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

	"gpusteward/collectors/gpu"
)

// maxKnown bounds the GPUs that are remembered; a host has sixteen.
const maxKnown = 64

// An inventory is every GPU that this host was ever seen to have, kept in a
// file so that one which is missing after a reboot is missed. Another GPU in
// the same slot takes its predecessor's place. Safe for concurrent use.
type inventory struct {
	path string // empty: in memory only

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
		log.Warn("inventory not read, beginning a new one: a GPU that is missing already is not missed", "file", v.path, "err", err)
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

// save writes the file if anything is new. A failure is told of once: what
// cannot be kept is known until the agent ends.
func (v *inventory) save(log *slog.Logger) {
	v.mu.Lock()
	dirty := v.dirty && v.path != ""
	v.dirty = false
	v.mu.Unlock()
	if !dirty {
		return
	}
	if err := ReplaceFile(v.path, inventoryFile{v.all()}.write); err != nil {
		log.Warn("inventory not kept: a GPU that is missing at the next start will not be missed", "err", err)
		v.path = ""
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
