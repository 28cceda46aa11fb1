package diag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// boards are the host's GPUs through NVML and CUDA.
type boards struct {
	nvml *gpu.Library
	cuda error // whether CUDA was opened
	once bool
}

// openDriver opens this host's driver. The process should end after its use, because a kernel
// that hangs keeps the driver from closing.
func openDriver() (Driver, error) {
	l, err := gpu.Open(nvml.New(), new(gpu.Calls), new(gpu.Caller))
	if err != nil {
		return nil, err
	}
	return &boards{nvml: l}, nil
}

func (b *boards) GPUs() (all []GPU, err error) {
	n, err := b.nvml.Count()
	if err != nil {
		return nil, err
	}
	for i := range n {
		g := GPU{Index: i}
		d, err := b.nvml.Device(i)
		if err != nil {
			g.Fault = err.Error()
			all = append(all, g)
			continue
		}
		g.UUID, g.PCI = d.UUID, d.PCI
		g.Name, _ = d.GetName()
		if mode, _, ret := d.GetMigMode(); ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
			g.Unfit = "MIG is on: only a whole GPU can be tested"
		}
		mode, _ := d.GetComputeMode()
		if g.Alone = mode == nvml.COMPUTEMODE_EXCLUSIVE_PROCESS; mode == nvml.COMPUTEMODE_PROHIBITED {
			g.Unfit = "its compute mode permits no process"
		}
		for _, list := range []func() ([]nvml.ProcessInfo, nvml.Return){
			d.GetComputeRunningProcesses, d.GetGraphicsRunningProcesses, d.GetMPSComputeRunningProcesses,
		} {
			processes, _ := list()
			for _, p := range processes {
				if pid := int(p.Pid); pid != os.Getpid() && !slices.Contains(g.Users, pid) {
					g.Users = append(g.Users, pid)
				}
			}
		}
		if m, ret := d.GetMemoryInfo_v2(); ret == nvml.SUCCESS && len(g.Users) == 0 {
			g.Taken = m.Used
		}
		all = append(all, g)
	}
	return all, nil
}

// board is one GPU. Vitals may be called beside one other call.
type board struct {
	cudaContext
	nvml    *gpu.Device
	events  gpu.EventSet
	told    bool // whether events report XIDs
	clock   clock
	kernels map[string]kernel // compiled kernels by name
	test    memory            // taken by Reserve
	small   memory            // numbers, sums and reports
	pieces  [2]memory
	pinned  uint64
}

// Sizes of GPU memory that is not tested, in bytes.
const (
	numbers   = 64 << 10 // inputs; the sums behind them take as much
	reports   = 64 << 10 // behind both
	copied    = 256 << 20
	leftAlone = 1 << 30 // free memory that the driver needs
)

func (b *boards) Open(uuid string) (Device, error) {
	if !b.once {
		b.cuda, b.once = openCUDA(), true
	}
	if b.cuda != nil {
		return nil, b.cuda
	}
	c, err := newContext(uuid)
	if err != nil {
		return nil, err
	}
	d := &board{cudaContext: c, kernels: map[string]kernel{}}
	if d.nvml, err = b.device(uuid); err != nil {
		return nil, err
	}
	var ret nvml.Return
	d.events, _, ret = d.nvml.Events(nvml.EventTypeXidCriticalError)
	d.told = ret == nvml.SUCCESS
	if d.clock, err = newClock(); err != nil {
		return nil, err
	}
	d.small, err = take(2*numbers + reports)
	return d, err
}

// kernel returns the kernel of that name, compiled once.
func (d *board) kernel(name, text string) (k kernel, err error) {
	if k, ok := d.kernels[name]; ok {
		return k, nil
	}
	if k, err = compile(text, name); err == nil {
		d.kernels[name] = k
	}
	return k, err
}

// device returns NVML's handle of the GPU.
func (b *boards) device(uuid string) (*gpu.Device, error) {
	n, err := b.nvml.Count()
	if err != nil {
		return nil, err
	}
	for i := range n {
		if d, err := b.nvml.Device(i); err == nil && d.UUID == uuid {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%s is not there", uuid)
}

func (d *board) Facts() Facts {
	f := Facts{
		SMs:        cudaAttribute(d.device, attributeSMs),
		Capability: 10*cudaAttribute(d.device, attributeMajor) + cudaAttribute(d.device, attributeMinor),
	}
	if d.enter() == nil {
		f.Memory, _ = totalMemory()
	}
	return f
}

// Reserve takes nearly all free memory, or the largest single piece of it.
func (d *board) Reserve() (uint64, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	free, err := freeMemory()
	if err != nil {
		return 0, err
	}
	if free < 2*leftAlone {
		return 0, unable(fmt.Sprintf("only %d MiB of its memory are free", free>>20))
	}
	for size := (free - leftAlone) &^ (1<<21 - 1); ; size -= size / 16 &^ (1<<21 - 1) {
		if d.test, err = take(size); err == nil {
			return size, nil
		}
		if size < free/2 {
			return 0, err
		}
	}
}

func (d *board) Release() error { return errors.Join(d.enter(), d.test.give()) }

// report returns the memory in which kernels count.
func (d *board) report() memory { return memory{d.small.at + 2*numbers, reports} }

// blocksOfSM is the number of blocks, with threads threads each, that an SM gets for patterns.
// They keep all of its memory requests busy.
const (
	blocksOfSM = 8
	threads    = 256
)

func (d *board) Pattern(p Pattern, injure bool) (m misread, err error) {
	if err := errors.Join(d.enter(), d.report().clear()); err != nil {
		return m, err
	}
	k, err := d.kernel("pattern", patternPTX)
	if err != nil {
		return m, err
	}
	words := d.test.size / 8
	pass := func(report uint64) error {
		return k.launch(blocksOfSM*d.Facts().SMs, threads, d.test.at, words, report, p.Seed, p.flip(), uint64(p.Kind))
	}
	if err := pass(0); err != nil {
		return m, err
	}
	if injure {
		if err := d.test.put(words/2*8, []byte{1, 2, 3, 4, 5, 6, 7, 8}); err != nil {
			return m, err
		}
	}
	if err := pass(d.report().at); err != nil {
		return m, err
	}
	text := make([]byte, 8+24*shownMisreads)
	if err := d.report().get(text); err != nil {
		return m, err
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(text[8*i:]) }
	m = misread{Bytes: 8 * words, Errors: word(0)}
	for i := range int(min(m.Errors, shownMisreads)) {
		m.First = append(m.First, badWord{Address: word(3*i + 1), Want: word(3*i + 2), Got: word(3*i + 3)})
	}
	return m, nil
}

// threadsOfUnit is the number of threads that an SM gets for products: the most that the kernel
// allows.
const threadsOfUnit = 512

func (d *board) Products(u Unit, seed uint64, rounds int, injured int) (t Tally, err error) {
	input, want := u.Numbers(seed)
	if err := errors.Join(d.enter(), d.report().clear(), d.small.put(0, input), d.small.put(numbers,
		want)); err != nil {
		return t, err
	}
	k, err := d.kernel(u.Name, u.PTX())
	if err != nil {
		return t, err
	}
	t.Took, err = d.clock.time(func() error {
		return k.launch(d.Facts().SMs, threadsOfUnit,
			d.small.at, d.small.at+numbers, d.report().at, uint64(rounds), uint64(uint32(injured)))
	})
	if err != nil {
		return t, err
	}
	text := make([]byte, 32*maxSMs)
	if err := d.report().get(text); err != nil {
		return t, err
	}
	t.Of = map[int]Sums{}
	for sm := range maxSMs {
		word := func(i int) uint64 { return binary.LittleEndian.Uint64(text[32*sm+8*i:]) }
		if s := (Sums{word(0), word(1), word(2), word(3)}); s.Tiles > 0 {
			t.Of[sm] = s
		}
	}
	return t, nil
}

// spaces takes the memory between which copies go.
func (d *board) spaces() (err error) {
	if err = d.enter(); err != nil || d.pieces[0].size > 0 {
		return err
	}
	for i := range d.pieces {
		if d.pieces[i], err = take(copied); err != nil {
			return err
		}
	}
	return nil
}

func (d *board) Copy(way Way, most time.Duration) (Rate, error) {
	if err := d.spaces(); err != nil {
		return Rate{}, err
	}
	other := d.pieces[1].at
	if way != Within {
		if d.pinned == 0 {
			var err error
			if d.pinned, err = pin(copied); err != nil {
				return Rate{}, err
			}
		}
		other = d.pinned
	}
	return d.rate(most, func() error { return copyWay(way, d.pieces[0].at, other, copied) })
}

// rate repeats a copy for about the time most. The first copy is not counted.
func (d *board) rate(most time.Duration, once func() error) (all Rate, err error) {
	n := 1
	if _, err := d.clock.time(once); err != nil {
		return all, err
	}
	for all.Took < most {
		took, err := d.clock.time(func() error {
			for range n {
				if err := once(); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return all, err
		}
		all.Bytes += uint64(n) * copied
		all.Took += took
		n = max(1, min(64, int(float64(all.Bytes/copied)*float64(most-all.Took)/float64(all.Took))))
	}
	return all, nil
}

func (b *boards) Between(from, to Device, most time.Duration) (Rate, error) {
	f, t := from.(*board), to.(*board)
	if err := errors.Join(f.spaces(), t.spaces()); err != nil {
		return Rate{}, err
	}
	if err := errors.Join(f.reach(t.cudaContext), t.reach(f.cudaContext)); err != nil {
		return Rate{}, err
	}
	if err := f.enter(); err != nil {
		return Rate{}, err
	}
	return f.rate(most, func() error { return t.copyAcross(t.pieces[0].at, f.cudaContext, f.pieces[0].at, copied) })
}

func (d *board) Vitals() (v Vitals) {
	g := d.nvml
	if mhz, ret := g.GetClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		v.Clock = float64(mhz) * 1e6
	}
	if mhz, ret := g.GetMaxClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		v.MostClock = float64(mhz) * 1e6
	}
	if mw, ret := g.GetPowerUsage(); ret == nvml.SUCCESS {
		v.Power = float64(mw) / 1000
	}
	if mw, ret := g.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		v.Limit = float64(mw) / 1000
	}
	v.Celsius, _ = g.Temperature()
	var ret nvml.Return
	if v.Reasons, ret = g.GetCurrentClocksEventReasons(); ret != nvml.SUCCESS {
		v.Reasons, _ = g.GetCurrentClocksThrottleReasons()
	}
	v.Generation, _ = g.GetCurrPcieLinkGeneration()
	v.MostGeneration, _ = g.GetMaxPcieLinkGeneration()
	v.Width, _ = g.GetCurrPcieLinkWidth()
	v.MostWidth, _ = g.GetMaxPcieLinkWidth()
	return v
}

func (d *board) Record() Record { return Record{d.links(), d.counters(), d.xids(), !d.told} }

// links returns the NVLinks that are up.
func (d *board) links() (all []Link) {
	for link := range nvml.NVLINK_MAX_LINKS {
		if state, ret := d.nvml.GetNvLinkState(link); ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		speed := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_GET_SPEED, ScopeId: uint32(link)}}
		d.nvml.Fields(speed)
		megabytes, ret := gpu.FieldNumber(speed[0])
		if ret != nvml.SUCCESS {
			continue
		}
		l := Link{Rate: megabytes * 1e6}
		if kind, ret := d.nvml.GetNvLinkRemoteDeviceType(link); ret == nvml.SUCCESS &&
			kind == nvml.NVLINK_DEVICE_TYPE_GPU {
			if pci, ret := d.nvml.GetNvLinkRemotePciInfo(link); ret == nvml.SUCCESS {
				l.Remote = gpu.String(pci.BusId[:])
			}
		}
		all = append(all, l)
	}
	return all
}

// counters returns the counters of errors.
func (d *board) counters() map[string]uint64 {
	all := map[string]uint64{}
	put := func(name string, n uint64, ret nvml.Return) {
		if ret == nvml.SUCCESS {
			all[name] = n
		}
	}
	n, ret := d.nvml.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	put("uncorrected ECC errors", n, ret)
	n, ret = d.nvml.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)
	put("corrected ECC errors", n, ret)
	corrected, uncorrected, pending, failed, ret := d.nvml.GetRemappedRows()
	put("remapped rows", uint64(corrected+uncorrected), ret)
	put("pending row remaps", bit(pending), ret)
	put("failed row remaps", bit(failed), ret)
	for _, cause := range []nvml.PageRetirementCause{
		nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
	} {
		pages, ret := d.nvml.GetRetiredPages(cause)
		put("retired pages", all["retired pages"]+uint64(len(pages)), ret)
	}
	replays, ret := d.nvml.GetPcieReplayCounter()
	put("PCIe replays", uint64(replays), ret)
	return all
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (d *board) xids() (all []uint64) {
	for d.told {
		e, ret := d.events.Wait(0)
		if ret != nvml.SUCCESS {
			return all
		}
		if e.EventType == nvml.EventTypeXidCriticalError {
			all = append(all, e.EventData)
		}
	}
	return all
}
