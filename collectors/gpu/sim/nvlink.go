package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// nvlink is the state of a GPU's NVLinks.
type nvlink struct {
	links []link
	up    int     // number of links
	speed float64 // of a link and direction, MiB per second
}

// link is one NVLink: traffic in KiB and errors by kind, both since the driver
// was loaded.
type link struct {
	up       bool
	tx, rx   float64
	errors   [nvml.NVLINK_ERROR_COUNT]uint64
	recovery struct{ ok, failed uint64 }
	rate     uint64 // errors per second, while a fault lasts
}

func (n *nvlink) start(g *gpu) {
	p := g.model.NVLink
	n.links, n.up = make([]link, p.Links), p.Links
	n.speed = float64(p.Speed) * 1e6 / (1 << 20)
	for i := range n.links {
		n.links[i].up = true
		n.links[i].errors[nvml.NVLINK_ERROR_DL_CRC_DATA] = 1 + noise.Hash(g.seed, uint64(i)+500)%21
	}
}

// restart clears the counters.
func (n *nvlink) restart() {
	for i := range n.links {
		n.links[i] = link{up: n.links[i].up, rate: n.links[i].rate}
	}
}

// capacity returns the maximum traffic of all links in one direction, in MiB
// per second.
func (n *nvlink) capacity() float64 { return n.speed * float64(n.up) }

// count spreads a step's traffic over the links that are up, and adds errors
// every second.
func (n *nvlink) count(g *gpu) {
	w := &g.work.gpm
	if n.up > 0 && w.nvTx+w.nvRx > 0 {
		share := step.Seconds() * 1024 / float64(n.up)
		for i := range n.links {
			if l := &n.links[i]; l.up {
				l.tx += w.nvTx * share
				l.rx += w.nvRx * share
			}
		}
	}
	if g.n%second != 0 {
		return
	}
	for i := range n.links {
		if l := &n.links[i]; l.rate > 0 {
			l.fail(l.rate)
			l.recovery.ok++
		}
	}
}

// fail adds recovered errors.
func (l *link) fail(count uint64) {
	l.errors[nvml.NVLINK_ERROR_DL_CRC_FLIT] += count
	l.errors[nvml.NVLINK_ERROR_DL_CRC_DATA] += count / 2
	l.errors[nvml.NVLINK_ERROR_DL_REPLAY] += (count + 3) / 4
}

func (g *gpu) linkDown(f *scenarios.Fault) {
	l := &g.nvlink.links[f.Link]
	if l.up {
		l.up = false
		g.nvlink.up--
	}
	l.fail(64)
	l.errors[nvml.NVLINK_ERROR_DL_RECOVERY]++
	l.recovery.failed++
	g.xid(74, nil, nil)
}

func (g *gpu) linkUp(f *scenarios.Fault) {
	if l := &g.nvlink.links[f.Link]; !l.up {
		l.up = true
		g.nvlink.up++
		l.recovery.ok++
	}
}

func (g *gpu) linkErrorsBegin(f *scenarios.Fault) { g.nvlink.links[f.Link].rate = f.Count }
func (g *gpu) linkErrorsEnd(f *scenarios.Fault)   { g.nvlink.links[f.Link].rate = 0 }

// onLink is read for a call on one link.
func onLink[T any](d *device, call string, index int, value func(*gpu, *link) (T, nvml.Return)) (T, nvml.Return) {
	return read(d, call, func(g *gpu) (v T, ret nvml.Return) {
		switch {
		case index < 0 || index >= nvml.NVLINK_MAX_LINKS:
			return v, nvml.ERROR_INVALID_ARGUMENT
		case index >= len(g.nvlink.links):
			return v, nvml.ERROR_NOT_SUPPORTED
		}
		return value(g, &g.nvlink.links[index])
	})
}

// GetNvLinkState reports whether a link is up.
func (d *device) GetNvLinkState(index int) (nvml.EnableState, nvml.Return) {
	return onLink(d, "nvmlDeviceGetNvLinkState", index, func(_ *gpu, l *link) (nvml.EnableState, nvml.Return) {
		return enabled(l.up), nvml.SUCCESS
	})
}

// GetNvLinkVersion returns an nvml.NVLINK_VERSION_*.
func (d *device) GetNvLinkVersion(index int) (uint32, nvml.Return) {
	return onLink(d, "nvmlDeviceGetNvLinkVersion", index, func(g *gpu, _ *link) (uint32, nvml.Return) {
		return g.model.NVLink.Version, nvml.SUCCESS
	})
}

// GetNvLinkRemoteDeviceType returns a switch.
func (d *device) GetNvLinkRemoteDeviceType(index int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	return onLink(d, "nvmlDeviceGetNvLinkRemoteDeviceType", index,
		func(_ *gpu, l *link) (nvml.IntNvLinkDeviceType, nvml.Return) {
			if !l.up {
				return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, nvml.SUCCESS
			}
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		})
}

// GetNvLinkRemotePciInfo returns the address of a switch as a guest sees it.
func (d *device) GetNvLinkRemotePciInfo(index int) (nvml.PciInfo, nvml.Return) {
	return onLink(d, "nvmlDeviceGetNvLinkRemotePciInfo", index, func(*gpu, *link) (nvml.PciInfo, nvml.Return) {
		info := nvml.PciInfo{Domain: 0xFFFFFFFF, Bus: 0xFF, Device: 0xFF}
		text(info.BusId[:], "FFFFFFFF:FF:FF.0")
		text(info.BusIdLegacy[:], "FFFF:FF:FF.0")
		return info, nvml.SUCCESS
	})
}

// GetNvLinkErrorCounter returns errors of a link since the driver was loaded.
func (d *device) GetNvLinkErrorCounter(index int, counter nvml.NvLinkErrorCounter) (uint64, nvml.Return) {
	return onLink(d, "nvmlDeviceGetNvLinkErrorCounter", index, func(g *gpu, l *link) (uint64, nvml.Return) {
		switch {
		case counter < 0 || counter >= nvml.NVLINK_ERROR_COUNT:
			return 0, nvml.ERROR_INVALID_ARGUMENT
		case g.model.Has("nvlink5"): // an H200 answers all five
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return l.errors[counter], nvml.SUCCESS
	})
}

// enabled converts a flag.
func enabled(on bool) nvml.EnableState {
	if on {
		return nvml.FEATURE_ENABLED
	}
	return nvml.FEATURE_DISABLED
}
