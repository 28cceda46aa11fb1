package health

import (
	"maps"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// What explains that something is not as it was, and is no fault.
var (
	Away        = collectors.Gauge("nvgpu_away", "1 for a GPU that is handed to a virtual machine: bound to vfio-pci or its like.")
	DevicesAway = collectors.HostGauge("nvgpu_devices_away", "GPUs that are handed to virtual machines.")
	Settling    = collectors.Gauge("nvgpu_settling", "1 for the first 5 minutes after the GPU was reset or its driver loaded anew: its links train.")
	Reloading   = collectors.HostGauge("nvgpu_driver_reloading", "1 after the driver was unloaded, for 10 minutes, or ceased to answer for GPUs that it drives or that had work a minute before, for 3: to load it anew may take that long.")
	HotAisle    = collectors.HostGauge("nvgpu_hot_aisle", "1 while three quarters of the GPUs that answer, two at least, are within 5 degrees of their limit: the air is too warm, and no GPU of its own.")
	Starved     = collectors.HostGauge("gpusteward_starved", "1 while the data of all GPUs, two at least, are old, and not each for a driver call: the agent itself does not get to run.")
)

// How long what is planned may take.
const (
	settleFor = 5 * time.Minute  // the links of eight GPUs and their switches train
	reloadFor = 10 * time.Minute // a driver is built for this kernel, and loaded
	reopenFor = 3 * time.Minute  // a driver that is loaded initialises each GPU
	restFirst = time.Minute      // without work, before a driver is unloaded on purpose and for long
)

// handing are the drivers that hand a device to a virtual machine.
var handing = []string{"vfio-pci", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci", "pci-stub", "pciback", "uio_pci_generic"}

// plans are what is remembered of drivers that were loaded anew and GPUs that
// were reset. What there is at the beginning is not new.
type plans struct {
	begun bool
	here  map[incident.Entity]bool      // GPUs that the driver has, whether or not they answer
	fresh map[incident.Entity]time.Time // since when, of those that came lately or were reset
	open  time.Time                     // when the driver last answered; zero: never
	works time.Time                     // when there last was work on a GPU
}

// reset notes that a GPU was reset.
func (p *plans) reset(gpu incident.Entity, now time.Time) {
	if p.fresh == nil {
		p.fresh = map[incident.Entity]time.Time{}
	}
	p.fresh[gpu] = now
}

// explain adds to s what is planned.
func (p *plans) explain(s *derived.Snapshot, now time.Time) {
	reasons := map[incident.Entity]string{}
	for _, stuck := range s.Of(collectors.WorkerStuck) {
		reasons[incident.EntityOf(stuck, nil)] = stuck.Labels[2]
	}
	driven := hand(s)
	p.settle(s, reasons, now)
	if len(s.Of(collectors.WorkloadMemory)) > 0 {
		p.works = now
	}
	for _, up := range s.Of(collectors.DriverUp) {
		patience := reloadFor
		if up.Value == 1 {
			p.open = now
		}
		if driven > 0 || p.open.Sub(p.works) < restFirst {
			patience = reopenFor
		}
		reloading := up.Value == 0 && !p.open.IsZero() && now.Sub(p.open) <= patience
		s.Add(collectors.Sample{Metric: Reloading, Value: collectors.Bool(reloading)})
	}
	if len(s.Of(collectors.Up)) > 0 {
		s.Add(collectors.Sample{Metric: HotAisle, Value: collectors.Bool(hotAisle(s))}, collectors.Sample{Metric: Starved, Value: collectors.Bool(starved(s, reasons))})
	}
}

// hand adds which GPUs are handed on, and returns how many NVIDIA's driver has.
func hand(s *derived.Snapshot) (driven int) {
	away, n := map[incident.Entity]bool{}, 0
	for _, bound := range s.Of(collectors.PCIDeviceBound) {
		switch kind, driver := bound.Labels[3], bound.Labels[4]; {
		case kind != "gpu" || bound.Value == 0:
		case driver == "nvidia":
			driven++
		case slices.Contains(handing, driver):
			away[incident.EntityOf(bound, nil)] = true
			n++
		}
	}
	for _, up := range s.Of(collectors.Up) {
		s.Add(collectors.Sample{Metric: Away, Labels: up.Labels, Value: collectors.Bool(away[incident.EntityOf(up, nil)])})
	}
	s.Add(collectors.Sample{Metric: DevicesAway, Value: float64(n)})
	return driven
}

// settle adds which GPUs came lately. One whose data are late, or whose driver
// call hangs, has not gone.
func (p *plans) settle(s *derived.Snapshot, reasons map[incident.Entity]string, now time.Time) {
	here := map[incident.Entity]bool{}
	for _, up := range s.Of(collectors.Up) {
		gpu := incident.EntityOf(up, nil)
		if here[gpu] = up.Value == 1 || p.here[gpu] && held(reasons[gpu]); here[gpu] && p.begun && !p.here[gpu] {
			p.reset(gpu, now)
		}
	}
	p.here, p.begun = here, true
	maps.DeleteFunc(p.fresh, func(_ incident.Entity, since time.Time) bool { return now.Sub(since) >= settleFor })
	for _, up := range s.Of(collectors.Up) {
		if gpu := incident.EntityOf(up, nil); here[gpu] {
			s.Add(collectors.Sample{Metric: Settling, Labels: up.Labels, Value: collectors.Bool(!p.fresh[gpu].IsZero())})
		}
	}
}

// held reports whether a GPU that does not answer may do so when whoever reads
// it goes on.
func held(reason string) bool { return reason == "late" || strings.HasPrefix(reason, "nvml") }

// starved reports whether the agent does not get to run: all that it reads is
// late at once. A reader that is held up in a driver call is no proof against
// it, for it may have been put to sleep there.
func starved(s *derived.Snapshot, reasons map[incident.Entity]string) bool {
	late, all := 0, 0
	for _, up := range s.Of(collectors.Up) {
		switch reason := reasons[incident.EntityOf(up, nil)]; {
		case up.Value == 1:
			return false
		case reason == "late":
			late++
			all++
		case held(reason):
			all++
		}
	}
	return late > 0 && all > 1
}

// nearLimit is how many degrees from its limit a GPU is hot.
const nearLimit = 5

// hotAisle reports whether nearly all GPUs are hot. Those that do not say their
// margin say their temperature and their limit.
func hotAisle(s *derived.Snapshot) bool {
	margins, limits := map[incident.Entity]float64{}, map[incident.Entity]float64{}
	for _, limit := range s.Of(collectors.TemperatureThreshold) {
		if limit.Labels[2] == "gpu_max" {
			limits[incident.EntityOf(limit, nil)] = limit.Value
		}
	}
	for _, t := range s.Of(collectors.Temperature) {
		if limit, known := limits[incident.EntityOf(t, nil)]; known && t.Labels[2] == "gpu" {
			margins[incident.EntityOf(t, nil)] = limit - t.Value
		}
	}
	for _, margin := range s.Of(collectors.TemperatureMargin) {
		margins[incident.EntityOf(margin, nil)] = margin.Value
	}
	hot := 0
	for _, margin := range margins {
		if margin <= nearLimit {
			hot++
		}
	}
	return hot > 1 && 4*hot >= 3*len(margins)
}
