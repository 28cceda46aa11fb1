package collectors

import (
	"time"

	"gpusteward/collectors/gpu"
)

// An Event is one event that the driver raised about a GPU.
type Event struct {
	Time time.Time // of the reading, up to a beat after the event
	GPU  gpu.ID
	Type string // "xid", one of gpu.EventTypes, or "other"
	Code uint64 // what the driver says in addition to the type: the XID, the recovery action
	GI   string // MIG GPU instance; empty outside MIG
}
