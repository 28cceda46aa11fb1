package sim

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing/fstest"
	"time"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/host"
)

// Kernel returns the simulated kernel's view of the devices. It waits for no
// GPU, and needs no session.
func (h *Host) Kernel() host.Kernel {
	return host.Kernel{Proc: &tree{host: h, grow: (*Host).procfs}, Sys: &tree{host: h, grow: (*Host).sysfs}}
}

// A tree is a file system that is regenerated for each simulation step in which
// a file in it is opened.
type tree struct {
	host *Host
	grow func(h *Host, t time.Duration) fstest.MapFS

	mu    sync.Mutex
	at    time.Duration
	files fstest.MapFS
}

// Open opens a file in its current state.
func (t *tree) Open(name string) (fs.File, error) {
	now := t.host.now().Truncate(step)
	t.mu.Lock()
	if t.files == nil || t.at != now {
		t.at, t.files = now, t.grow(t.host, now)
	}
	files := t.files
	t.mu.Unlock()
	return files.Open(name)
}

func file(format string, args ...any) *fstest.MapFile {
	return &fstest.MapFile{Data: fmt.Appendf(nil, format, args...)}
}

// procfs has a thread of the driver, which hangs while a GPU is wedged.
func (h *Host) procfs(t time.Duration) fstest.MapFS {
	state := 'S'
	if slices.ContainsFunc(h.gpus, func(g *gpu) bool { return g.strikes("wedge", t) }) {
		state = 'D'
	}
	of := &gpu{seed: h.seed} // a host without GPUs has booted, too
	if len(h.gpus) > 0 {
		of = h.gpus[0]
	}
	return fstest.MapFS{
		"stat":                      file("cpu  0 0 0 0\nbtime %d\n", h.start.Add(-uptime).Unix()),
		"sys/kernel/random/boot_id": file("%s\n", of.uuid("", 900)[1:]),
		"731/status":                file("Name:\tnv_queue\nState:\t%c\nPPid:\t2\n", state),
	}
}

// sysfs has the GPUs present, the NVSwitches and the InfiniBand ports.
func (h *Host) sysfs(t time.Duration) fstest.MapFS {
	files := fstest.MapFS{}
	for _, g := range h.gpus {
		if g.plugged(t) {
			g.pciFiles(t, files)
		}
	}
	for i := range h.scenario.NVSwitches {
		dir := fmt.Sprintf("bus/pci/devices/0000:%02x:00.0/", 0xf0+i)
		files[dir+"uevent"] = file("DRIVER=nvidia-nvswitch\nPCI_CLASS=68000\nPCI_ID=10DE:22A3\n")
		files[dir+"config"] = file("\xde\x10\xa3\x22")
	}
	for i := range h.scenario.InfiniBand {
		h.portFiles(i, t, files)
	}
	return files
}

// pciFiles adds the GPU's directory.
func (g *gpu) pciFiles(t time.Duration, files fstest.MapFS) {
	bus, slot := g.address()
	address := fmt.Sprintf("0000:%02x:%02x.0", bus, slot)
	dir := "bus/pci/devices/" + address + "/"
	vendor, product := g.model.PCIDevice&0xFFFF, g.model.PCIDevice>>16
	driver := "DRIVER=nvidia\n"
	if g.strikes("driver_unbound", t) || g.strikes("driver_gone", t) {
		driver = ""
	}
	files[dir+"uevent"] = file("%sPCI_CLASS=30200\nPCI_ID=%04X:%04X\nPCI_SLOT_NAME=%s\n", driver, vendor, product,
		address)
	config := binary.LittleEndian.AppendUint32(nil, g.model.PCIDevice)
	if g.strikes("lost", t) || g.strikes("pci_gone", t) {
		config = []byte{0xff, 0xff, 0xff, 0xff}
	}
	files[dir+"config"] = &fstest.MapFile{Data: config}
	if g.model.VirtualMachine {
		return
	}
	g.mu.Lock()
	g.advance(t)
	counts := g.pcie.aer
	g.mu.Unlock()
	for i, s := range aerSeverities {
		files[dir+"aer_dev_"+s.name] = file("%s %d\n%s %d\n", s.error, counts[i], s.total, counts[i])
	}
}

// aerSeverities are the severities of the PCIe errors that the kernel counts,
// each with one error and the line of the total.
var aerSeverities = []struct{ name, error, total string }{
	{"correctable", "RxErr", "TOTAL_ERR_COR"}, {"nonfatal", "CmpltTO", "TOTAL_ERR_NONFATAL"},
	{"fatal", "DLP", "TOTAL_ERR_FATAL"},
}

func (g *gpu) raiseAER(f *scenarios.Fault) {
	for i, s := range aerSeverities {
		if s.name == f.Severity {
			g.pcie.aer[i] += f.Count
		}
	}
	g.say("aer "+f.Severity, 0, nil)
}

// portFiles adds the directory of an InfiniBand port.
func (h *Host) portFiles(index int, t time.Duration, files fstest.MapFS) {
	state, physical, downed := "4: ACTIVE", "5: LinkUp", uint64(0)
	for i := range h.hostwide {
		f := &h.hostwide[i]
		if f.Kind != "ib_down" || f.Device != scenarios.Port(index) {
			continue
		}
		downed += f.Begun(t)
		if _, _, active := f.Window(t); active {
			state, physical = "1: DOWN", "2: Polling"
		}
	}
	adapter, number, _ := strings.Cut(scenarios.Port(index), "/")
	dir := "class/infiniband/" + adapter + "/ports/" + number + "/"
	files[dir+"state"], files[dir+"phys_state"] = file("%s\n", state), file("%s\n", physical)
	files[dir+"link_layer"], files[dir+"rate"] = file("InfiniBand\n"), file("400 Gb/sec (4X NDR)\n")
	files[dir+"counters/link_downed"] = file("%d\n", downed)
}
