package collectors

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// saveAgain is the pause after a failed write to the state directory.
const saveAgain = 10 * time.Second

// maxKnown bounds the remembered GPUs; a host has sixteen.
const maxKnown = 64

// An inventory lists every GPU that this host ever had. A file keeps it, so
// that a GPU missing after a reboot is noticed. A new GPU in a slot replaces
// the old one. Safe for concurrent use.
type inventory struct {
	file   host.StateFile
	failed time.Time // time of the last failed write that was logged; zero: writes succeed

	mu    sync.Mutex
	known []*knownGPU // by index
	dirty bool
}

// A knownGPU is one of them, with the state that outlives its handle.
type knownGPU struct {
	gpu.ID
	met    bool                              // by this process
	totals map[*Collector]map[string]float64 // of Readings.Add; belongs to the reader
}

// inventoryFile is the file's contents: the GPUs, by index. To remove a GPU for
// good, stop the agent and remove the GPU from this file too.
type inventoryFile struct {
	GPUs []gpu.ID `json:"gpus"`
}

// load reads the inventory in dir. If the file is unreadable, load logs that
// and starts a new inventory.
func (v *inventory) load(dir string, log *slog.Logger) {
	if dir == "" {
		return
	}
	v.file.Path = filepath.Join(dir, "inventory.json")
	var file inventoryFile
	if _, err := v.file.Read(func(text []byte) error { return json.Unmarshal(text, &file) }); err != nil {
		log.Warn("cannot read the inventory, starting a new one: GPUs that are already missing will not be noticed",
			"file", v.file.Path, "aside", v.file.Path+".bad", "err", err)
		return
	}
	for _, id := range file.GPUs {
		if id.UUID != "" && len(v.known) < maxKnown {
			v.known = append(v.known, &knownGPU{ID: id, totals: map[*Collector]map[string]float64{}})
		}
	}
}

// saw records that the GPU exists, and returns what is known of it.
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

// met reports whether this process has seen the GPU.
func (v *inventory) met(uuid string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(v.known, func(k *knownGPU) bool { return k.UUID == uuid && k.met })
}

// save writes the file if anything is new. It logs a failure once and retries
// later; the inventory stays in memory meanwhile.
func (v *inventory) save(log *slog.Logger) {
	if v.file.Path == "" || !v.failed.IsZero() && time.Since(v.failed) < saveAgain {
		return
	}
	v.mu.Lock()
	dirty := v.dirty
	v.dirty = false
	v.mu.Unlock()
	if !dirty {
		return
	}
	text, err := json.MarshalIndent(inventoryFile{v.all()}, "", "\t")
	if err == nil {
		err = v.file.Write(append(text, '\n'))
	}
	switch told := !v.failed.IsZero(); {
	case err == nil && told:
		v.failed = time.Time{}
		log.Info("inventory saved again", "file", v.file.Path)
	case err != nil:
		v.mu.Lock()
		v.dirty = true
		v.mu.Unlock()
		if v.failed = time.Now(); !told {
			log.Warn("cannot save the inventory, retrying: a GPU missing at the next start will not be noticed",
				"err", err)
		}
	}
}

// forget drops a GPU that was removed for good.
func (v *inventory) forget(uuid string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := len(v.known)
	v.known = slices.DeleteFunc(v.known, func(k *knownGPU) bool { return k.UUID == uuid })
	v.dirty = v.dirty || len(v.known) != before
}

// Forget makes the host stop missing a GPU that was removed. A GPU that is
// still present is met again.
func (h *Host) Forget(uuid string) { h.inventory.forget(uuid) }
