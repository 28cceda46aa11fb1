// Package models has the simulated GPU products, from models.json.
package models

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
)

//go:embed models.json
var source []byte

// Model is a GPU product: its constant NVML values, and the constants of its
// physics. The entries "h100-vm" and "h200" were recorded on real hardware; the
// others are plausible.
type Model struct {
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
	Clock          Clock                 `json:"clock_mhz"`
	Power          Power                 `json:"power_w"`
	Temperature    Temperature           `json:"temperature_c"`
	PCIe           PCIe                  `json:"pcie"`
	NVLink         NVLink                `json:"nvlink"`
	IdlePState     int                   `json:"idle_pstate"`
	EventTypes     uint64                `json:"event_types"`
	RowBanks       uint32                `json:"row_banks"`
	Decoders       uint32                `json:"decoders"`
	Encoders       uint32                `json:"encoders"`
	Fans           int                   `json:"fans"`
	Features       []string              `json:"features"`
	MIG            map[string]MIGProfile `json:"mig"`

	features map[string]bool // Features as a set
}

// Clock holds frequencies in MHz: an idle GPU varies between IdleLow and
// IdleHigh, and under full load the power limit holds it at Full.
type Clock struct {
	IdleLow    float64 `json:"idle_low"`
	IdleHigh   float64 `json:"idle_high"`
	Full       float64 `json:"full"`
	Max        float64 `json:"max"`
	Memory     float64 `json:"memory"`
	MemoryIdle float64 `json:"memory_idle"`
	VideoMax   float64 `json:"video_max"`
	Step       float64 `json:"step"`
}

// Power holds watts. Active is the draw at full clock without work.
type Power struct {
	Idle        float64 `json:"idle"`
	Active      float64 `json:"active"`
	Min         float64 `json:"min"`
	Default     float64 `json:"default"`
	Max         float64 `json:"max"`
	MemoryShare float64 `json:"memory_share"` // of the whole, 0 to 1
}

// Temperature holds equilibrium temperatures and limits in degrees Celsius; a
// memory temperature of 0 means that the model has no such sensor.
type Temperature struct {
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

// PCIe is the widest and fastest link of the board.
type PCIe struct {
	Generation     int `json:"generation"`
	IdleGeneration int `json:"idle_generation"`
	Width          int `json:"width"`
	Speed          int `json:"speed_mbps"` // MT/s per lane
}

// NVLink is the number and the kind of the GPU's NVLinks.
type NVLink struct {
	Links   int    `json:"links"`
	Version uint32 `json:"version"`    // nvml.NVLINK_VERSION_*
	Speed   uint32 `json:"speed_mbps"` // MB/s per link
}

// MIGProfile is a size of MIG devices.
type MIGProfile struct {
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

// All returns every model by name.
var All = sync.OnceValues(func() (map[string]*Model, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(source, &raw); err != nil {
		return nil, fmt.Errorf("read models.json: %w", err)
	}
	all := make(map[string]*Model, len(raw))
	for name := range raw {
		m := &Model{}
		if err := fill(m, raw, name, 0); err != nil {
			return nil, fmt.Errorf("read models.json: model %s: %w", name, err)
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
func fill(m *Model, raw map[string]json.RawMessage, name string, depth int) error {
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

// Has reports whether the model supports a feature of models.json.
func (m *Model) Has(feature string) bool { return m.features[feature] }
