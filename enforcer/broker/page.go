package broker

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/wire"
)

// A page is the broker's side of a quota page. Writes before open or after
// close are lost: several goroutines write, and none of them knows when the
// session ends.
type page struct {
	mu sync.Mutex
	m  wire.Page
}

// open creates the page and returns the descriptor for the process, which the
// caller closes.
func (p *page) open(session uint64) (int, error) {
	fd, m, err := makePage(unix.F_SEAL_FUTURE_WRITE)
	if err != nil {
		return -1, err
	}
	m.Init(session)
	p.mu.Lock()
	p.m = m
	p.mu.Unlock()
	return fd, nil
}

// makePage maps a new page. The receiver of the descriptor can neither write
// nor resize it. future is the seal for that: kernels before 5.1 lack it, and
// there the descriptor is read-only.
func makePage(future int) (int, wire.Page, error) {
	fd, err := memfd("gpusteward-page")
	if err != nil {
		return -1, nil, err
	}
	m, err := mapMemory(fd, wire.PageSize, wire.PageSize)
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealSize|future)
	if err == nil && future != 0 {
		return fd, m, nil
	}
	if err != nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealSize)
	}
	readable := -1
	if err == nil {
		err = unix.Fchmod(fd, 0o444) // or it would be opened again for writing
	}
	if err == nil {
		readable, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	_ = unix.Close(fd)
	if err != nil {
		_ = unix.Munmap(m)
		return -1, nil, fmt.Errorf("seal page: %w", err)
	}
	return readable, m, nil
}

// sealSize keeps the other side from resizing the mapping.
const sealSize = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// makeLeases maps new leases and, if the process wants a trace, its head behind them. The rest of the trace, and what
// explains a crash, are in the same file. The receiver of the descriptor can write all of it.
func makeLeases(trace, crash bool) (fd int, m []byte, err error) {
	if fd, err = memfd("gpusteward-leases"); err != nil {
		return -1, nil, err
	}
	size, mapped := wire.LeaseSize, wire.LeaseSize
	if trace {
		size, mapped = wire.TraceAt+wire.TraceSize, wire.TraceAt+wire.TraceHead
		if crash {
			size += wire.CrashSize
		}
	}
	if m, err = mapMemory(fd, size, mapped); err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealSize); err == nil {
			return fd, m, nil
		}
		_ = unix.Munmap(m)
	}
	_ = unix.Close(fd)
	return -1, nil, err
}

// mapMemory sizes a file, and maps its first bytes.
func mapMemory(fd, size, mapped int) ([]byte, error) {
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fmt.Errorf("size page: %w", err)
	}
	m, err := unix.Mmap(fd, 0, mapped, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map page: %w", err)
	}
	return m, nil
}

// memfd creates a sealable file in memory. Kernels before 6.3 do not know the
// flag against executing it.
func memfd(name string) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("make %s: %w", name, err)
	}
	return fd, nil
}

// set writes a slot and wakes the process that waits for it.
func (p *page) set(slot int, t wire.Turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m != nil {
		p.m.SetTurn(slot, t)
		p.m.Ring()
	}
}

// setMemory writes a tenant's memory on a GPU, and the number of processes that
// share it.
func (p *page) setMemory(slot int, used, limit uint64, processes uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m != nil {
		p.m.SetMemory(slot, used, limit)
		p.m.SetProcesses(slot, processes)
	}
}

// setRates writes the allowed bytes per second of copies.
func (p *page) setRates(slot int, link, copies uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m != nil {
		p.m.SetRates(slot, link, copies)
	}
}

// setSuspended says whether the process is suspended, and wakes it.
func (p *page) setSuspended(suspended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m != nil {
		p.m.SetSuspended(suspended)
		p.m.Ring()
	}
}

// setTimed says how often the time of a launch is noted, and wakes the process.
func (p *page) setTimed(every time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m != nil {
		p.m.SetTimed(every)
		p.m.Ring()
	}
}

// heartbeat shows that the broker lives.
func (p *page) pinged(now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m != nil {
		p.m.SetHeartbeat(uint64(now))
	}
}

// close unmaps the broker's side; the process keeps its own, with all slots
// revoked.
func (p *page) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil {
		return
	}
	for i := range wire.GPUs {
		p.m.SetTurn(i, wire.Turn{Mode: wire.ModeKill})
	}
	p.m.Ring()
	_ = unix.Munmap(p.m)
	p.m = nil
}
