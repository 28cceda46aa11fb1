package sim

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

//go:embed profiles.json
var profiles []byte

// model is a GPU product: its constant NVML values, and the constants of its
// physics. The entries "h100-vm" and "h200" were recorded on real hardware; the
// others are plausible.
type model struct {
	Like           string                `json:"like"` // the model whose values fill the gaps
	Name           string                `json:"name"`
	Brand          int                   `json:"brand"`
	Architecture   uint32                `json:"architecture"`
	Compute        [2]int                `json:"compute"`
	Cores          int                   `json:"cores"`
	SMs            int                   `json:"sms"`
	BusWidth       uint32                `json:"bus_width_bits"`
	PCIDevice      uint32                `json:"pci_device"`
	PCISubsystem   uint32                `json:"pci_subsystem"`
	VirtualMachine bool                  `json:"virtual_machine"`
	PartNumber     string                `json:"part_number"`
	VBIOS          string                `json:"vbios"`
	Inforom        string                `json:"inforom"`
	InforomOEM     string                `json:"inforom_oem"`
	InforomECC     string                `json:"inforom_ecc"`
	Memory         uint64                `json:"memory_bytes"`
	Reserved       uint64                `json:"reserved_bytes"`
	BAR1           uint64                `json:"bar1_bytes"`
	Clock          clockProfile          `json:"clock_mhz"`
	Power          powerProfile          `json:"power_w"`
	Temperature    temperatureProfile    `json:"temperature_c"`
	PCIe           pcieProfile           `json:"pcie"`
	NVLink         nvlinkProfile         `json:"nvlink"`
	IdlePState     int                   `json:"idle_pstate"`
	EventTypes     uint64                `json:"event_types"`
	RowBanks       uint32                `json:"row_banks"`
	Decoders       uint32                `json:"decoders"`
	Encoders       uint32                `json:"encoders"`
	Fans           int                   `json:"fans"`
	Features       []string              `json:"features"`
	MIG            map[string]migProfile `json:"mig"`

	features map[string]bool // Features as a set
}

// clockProfile holds frequencies in MHz: an idle GPU varies between IdleLow and
// IdleHigh, and under full load the power limit holds it at Full.
type clockProfile struct {
	IdleLow    float64 `json:"idle_low"`
	IdleHigh   float64 `json:"idle_high"`
	Full       float64 `json:"full"`
	Max        float64 `json:"max"`
	Memory     float64 `json:"memory"`
	MemoryIdle float64 `json:"memory_idle"`
	VideoMax   float64 `json:"video_max"`
	Step       float64 `json:"step"`
}

// powerProfile holds watts. Active is the draw at full clock without work.
type powerProfile struct {
	Idle        float64 `json:"idle"`
	Active      float64 `json:"active"`
	Min         float64 `json:"min"`
	Default     float64 `json:"default"`
	Max         float64 `json:"max"`
	MemoryShare float64 `json:"memory_share"` // of the whole, 0 to 1
}

// temperatureProfile holds equilibrium temperatures and limits in degrees
// Celsius; a memory temperature of 0 means that the model has no such sensor.
type temperatureProfile struct {
	Idle       float64 `json:"idle"`
	Full       float64 `json:"full"`
	MemoryIdle float64 `json:"memory_idle"`
	MemoryFull float64 `json:"memory_full"`
	Tau        float64 `json:"tau_s"` // seconds
	Shutdown   float64 `json:"shutdown"`
	Slowdown   float64 `json:"slowdown"`
	MemoryMax  float64 `json:"memory_max"`
	GPUMax     float64 `json:"gpu_max"`
}

type pcieProfile struct {
	Generation     int `json:"generation"`
	IdleGeneration int `json:"idle_generation"`
	Width          int `json:"width"`
	Speed          int `json:"speed_mbps"` // MT/s per lane
}

type nvlinkProfile struct {
	Links   int    `json:"links"`
	Version uint32 `json:"version"`    // nvml.NVLINK_VERSION_*
	Speed   uint32 `json:"speed_mbps"` // MB/s per link
}

type migProfile struct {
	ID           uint32 `json:"id"`
	Slices       uint32 `json:"slices"`        // of 7
	MemorySlices uint32 `json:"memory_slices"` // of 8
	SMs          uint32 `json:"sms"`
	MemoryMiB    uint64 `json:"memory_mib"`
	Copy         uint32 `json:"copy"`
	Decoders     uint32 `json:"decoders"`
	JPEGs        uint32 `json:"jpegs"`
	OFAs         uint32 `json:"ofas"`
}

// models returns every model by name.
var models = sync.OnceValues(func() (map[string]*model, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(profiles, &raw); err != nil {
		return nil, fmt.Errorf("read profiles.json: %w", err)
	}
	all := make(map[string]*model, len(raw))
	for name := range raw {
		m := &model{}
		if err := fill(m, raw, name, 0); err != nil {
			return nil, fmt.Errorf("read profiles.json: model %s: %w", name, err)
		}
		m.features = make(map[string]bool, len(m.Features))
		for _, f := range m.Features {
			m.features[f] = true
		}
		all[name] = m
	}
	return all, nil
})

// fill decodes the named model over the model that it resembles.
func fill(m *model, raw map[string]json.RawMessage, name string, depth int) error {
	text, ok := raw[name]
	if !ok || depth > len(raw) {
		return fmt.Errorf("like: no such model %q", name)
	}
	var base struct {
		Like string          `json:"like"`
		MIG  json.RawMessage `json:"mig"`
	}
	if err := json.Unmarshal(text, &base); err != nil {
		return err
	}
	if base.Like != "" {
		if err := fill(m, raw, base.Like, depth+1); err != nil {
			return err
		}
	}
	if base.MIG != nil {
		m.MIG = nil
	}
	return json.Unmarshal(text, m)
}

// has reports whether the model supports a feature of profiles.json.
func (m *model) has(feature string) bool { return m.features[feature] }

// names lists the keys of a map for an error message.
func names[V any](m map[string]V) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}
