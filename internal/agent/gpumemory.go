package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/enforcer/suspend"
)

// How often CUDA is asked for what NVML does not tell, and for how long.
const (
	askSizesEvery = time.Minute
	askSizesFor   = 20 * time.Second
)

// A gpuMemory tells how much memory GPUs have. NVML does not tell that of GPUs that
// use the host's memory, such as GB10; CUDA does.
type gpuMemory struct {
	gpus      *collectors.Host
	ask       func(context.Context) (map[string]suspend.Size, error) // nil: nobody asks CUDA
	available func() (uint64, bool)                                  // bytes of the host's memory
	log       *slog.Logger

	mu     sync.Mutex
	sizes  map[string]suspend.Size // by UUID
	asked  time.Time
	asking bool
	failed string // what the log has
}

// of returns the memory of a GPU as device.MemoryOf does. It does not block: the
// size that only CUDA tells is known a moment after look.
func (m *gpuMemory) of(uuid string) (total, free, reserved uint64, ok bool) {
	if total, free, reserved, ok = device.MemoryOf(m.gpus, uuid); ok {
		return total, free, reserved, ok
	}
	m.mu.Lock()
	size, known := m.sizes[uuid]
	m.mu.Unlock()
	if !known {
		return 0, 0, 0, false
	}
	if size.Integrated {
		available, known := m.available()
		return size.Total, min(available, size.Total), 0, known
	}
	silent, listed := m.gpus.Silent()[uuid]
	free = size.Total
	for _, p := range m.gpus.DeviceProcesses() {
		if p.UUID == uuid {
			free -= min(p.Memory, free)
			silent = silent || !p.Known
		}
	}
	return size.Total, free, 0, listed && !silent
}

// look asks CUDA if a GPU answers, and NVML does not tell its memory. silent are
// the GPUs, and which of them do not answer.
func (m *gpuMemory) look(silent map[string]bool) {
	if m.ask == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	missing := ""
	for uuid, is := range silent {
		_, known := m.sizes[uuid]
		if _, _, _, told := device.MemoryOf(m.gpus, uuid); !is && !known && !told {
			missing = uuid
		}
	}
	if missing == "" || m.asking || !m.asked.IsZero() && time.Since(m.asked) < askSizesEvery {
		return
	}
	m.asking, m.asked = true, time.Now()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), askSizesFor)
		defer cancel()
		sizes, err := m.ask(ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.asking = false
		if err == nil {
			m.sizes = sizes
			m.log.Info("NVML does not tell the memory of a GPU, and CUDA does", "uuid", missing, "bytes", sizes[missing].Total)
		} else if m.failed != err.Error() {
			m.failed = err.Error()
			m.log.Warn("the memory of a GPU is unknown: a cap in percent is not in force there, and nothing that is suspended comes back",
				"uuid", missing, "err", err)
		}
	}()
}
