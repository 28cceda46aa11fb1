package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// pciDevices is sysfs's directory of the devices on the PCI bus.
const pciDevices = "bus/pci/devices"

// pciKinds are the relevant PCI classes of NVIDIA devices: GPUs without and
// with a display, and bridges, which NVSwitches are.
var pciKinds = map[string]string{"302": "gpu", "300": "gpu", "680": "nvswitch"}

// A PCIDevice is an NVIDIA device on the PCI bus.
type PCIDevice struct {
	Address string // "0000:9b:00.0"
	Kind    string // gpu or nvswitch
	Driver  string // the bound kernel module; empty: none
	Ports   string // addresses of the ports above it, with slashes between them: "0000:15:01.0/0000:16:00.0"
	Lanes   int    // most lanes of the last of these ports; 0: unknown
}

// PCIDevices returns the GPUs and NVSwitches, by address. It reads data that
// the kernel keeps in memory, so it waits for no device. The error is
// fs.ErrNotExist if there is no PCI bus.
func (k Kernel) PCIDevices() ([]PCIDevice, error) {
	entries, err := fs.ReadDir(k.sys(), pciDevices) // sorted
	if err != nil {
		return nil, fmt.Errorf("list the pci bus: %w", err)
	}
	var all []PCIDevice
	for _, e := range entries {
		dir := path.Join(pciDevices, e.Name())
		text, err := fs.ReadFile(k.sys(), path.Join(dir, "uevent"))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // the device has gone
		case err != nil:
			return nil, fmt.Errorf("read a pci device: %w", err)
		}
		d, ok := parsePCIDevice(string(text))
		if !ok {
			continue
		}
		// A virtual function is the part of a GPU for a virtual machine.
		if _, err := fs.Stat(k.sys(), path.Join(dir, "physfn")); err == nil {
			continue
		}
		d.Address = e.Name()
		if target, err := fs.ReadLink(k.sys(), dir); err == nil {
			d.Ports = portsOf(target)
			d.Lanes = k.lanes(path.Base(d.Ports))
		}
		all = append(all, d)
	}
	return all, nil
}

// portsOf returns the ports on the way to a device in the kernel's tree:
// "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0".
func portsOf(target string) string {
	way := strings.Split(path.Dir(target), "/")
	ports := slices.IndexFunc(way, func(name string) bool { _, ok := ParsePCI(name); return ok && name[0] != 'p' })
	if ports < 0 {
		return ""
	}
	return strings.Join(way[ports:], "/")
}

// lanes returns the most lanes of a port's link, 0 if they are unknown.
func (k Kernel) lanes(port string) int {
	text, _ := line(k.sys(), path.Join(pciDevices, port, "max_link_width"))
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= 32 { // 255 if the kernel does not know it
		return n
	}
	return 0
}

// parsePCIDevice parses a device's uevent; false if the device is not from
// NVIDIA or of no relevant kind.
func parsePCIDevice(uevent string) (d PCIDevice, ok bool) {
	nvidia := false
	for l := range strings.Lines(uevent) {
		key, value, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "=")
		switch key {
		case "DRIVER":
			d.Driver = value
		case "PCI_ID":
			nvidia = strings.HasPrefix(value, "10DE:")
		case "PCI_CLASS": // the last two digits are the programming interface
			d.Kind = pciKinds[value[:max(0, len(value)-2)]]
		}
	}
	return d, nvidia && d.Kind != ""
}

// Answers reports whether a device answers on the bus: the configuration space
// of one that does not reads as all ones. It waits as long as the kernel does,
// for instance while the device is being reset.
func (k Kernel) Answers(address string) (bool, error) {
	f, err := k.sys().Open(path.Join(pciDevices, address, "config"))
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	var vendor [2]byte // no more, because each word is a transaction on the bus
	if _, err := io.ReadFull(f, vendor[:]); err != nil {
		return false, fmt.Errorf("read the configuration space of %s: %w", address, err)
	}
	return vendor != [2]byte{0xff, 0xff}, nil
}

// AERErrors returns the number of PCIe errors of a device that the kernel has
// counted since it found the device, by severity: correctable, nonfatal or
// fatal. The error is fs.ErrNotExist if they are not reported, as in most
// virtual machines.
func (k Kernel) AERErrors(address, severity string) (uint64, error) {
	text, err := fs.ReadFile(k.sys(), path.Join(pciDevices, address, "aer_dev_"+severity))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(l, " "); ok && strings.HasPrefix(name, "TOTAL_ERR_") {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("read the %s errors of %s: no total", severity, address)
}
