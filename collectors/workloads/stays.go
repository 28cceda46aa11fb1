package workloads

import (
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
)

// Limits on stays that ended.
const (
	keepStays = 3 * time.Minute // for messages that the kernel logs late
	mostStays = 1024
)

// stay records which processes are on a GPU now, which arrived and which left.
func (u *users) stay(now time.Time, holders []*holder) []collectors.Stay {
	there, all := make(map[int]host.Process, len(holders)), make([]collectors.Stay, 0, len(u.stays))
	kinds := make(map[int]string, len(holders))
	for _, h := range holders {
		p := h.process
		p.PID = int(h.pid)
		there[p.PID], kinds[p.PID] = p, h.kind
		if h.serves() {
			kinds[p.PID] = collectors.KindServer
		}
	}
	for _, s := range u.stays {
		p, listed := there[s.Process.PID]
		switch {
		case !s.Until.IsZero():
			if now.Sub(s.Until) > keepStays {
				continue
			}
		case listed && (p.Start == s.Process.Start || p.Start == 0 || s.Process.Start == 0):
			if delete(there, p.PID); p.Start != 0 {
				s.Process, s.Kind = p, kinds[p.PID] // its workload may be known by now
			}
		default:
			s.Until = now
		}
		all = append(all, s)
	}
	for _, h := range holders {
		if p, came := there[int(h.pid)]; came {
			delete(there, p.PID)
			all = append(all, collectors.Stay{Process: p, Kind: kinds[p.PID], After: u.asked})
		}
	}
	for i := 0; len(all) > mostStays && i < len(all); {
		if all[i].Until.IsZero() {
			i++
			continue
		}
		all = slices.Delete(all, i, i+1)
	}
	u.stays, u.asked = all, now
	return all
}
