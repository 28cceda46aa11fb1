package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	dra          = "/apis/resource.k8s.io/"
	driver       = "gpu.nvidia.com"
	taintKey     = "gpusteward.dev/unhealthy"
	managedBy    = "app.kubernetes.io/managed-by"
	manager      = "gpusteward-kube"
	nodeLabel    = "gpusteward.dev/node" // a hash: names of nodes may be longer than labels
	uuidLabel    = "gpusteward.dev/uuid"
	mostTaints   = 256 // of a node
	fieldManager = "?fieldManager=" + manager
)

// taints are the DeviceTaintRules of a node. Its labels mark a rule of ours; other rules are never
// touched. A rule is made of the device's name, so that it is found again after a restart.
type taints struct {
	node, effect string
	owner        types.UID // of the node: if it is deleted, so are its rules
	api          *api
	log          *slog.Logger
	path         string // of the rules in this cluster
}

func hash(parts ...string) string {
	sum := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(sum, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// keep adds the rules of unhealthy GPUs, and lifts those of healthy ones.
func (t *taints) keep(ctx context.Context, stateOf func(uuid string) state) error {
	if t.owner == "" { // the node could not be read, which is reported
		return nil
	}
	if err := t.find(ctx); err != nil {
		return err
	}
	var rules resourcev1.DeviceTaintRuleList
	mine := managedBy + "=" + manager + "," + nodeLabel + "=" + hash(t.node)
	if err := t.api.get(ctx, t.path, url.Values{"labelSelector": {mine}}, &rules); err != nil {
		t.path = "" // a new version of the cluster may have another one
		return err
	}
	there := map[string]bool{}
	for _, r := range rules.Items {
		there[r.Name] = true
	}
	wanted, present, err := t.wanted(ctx, stateOf)
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range wanted {
		if there[r.Name] {
			continue
		}
		if err := t.api.call(ctx, http.MethodPost, t.path+fieldManager, "application/json", r, nil); err != nil {
			failed = append(failed, err)
			continue
		}
		t.log.Warn("tainted a device", "device", *r.Spec.DeviceSelector.Device, "gpu", r.Labels[uuidLabel],
			"effect", r.Spec.Taint.Effect)
	}
	for _, r := range rules.Items {
		uuid, lift := r.Labels[uuidLabel], false
		switch stateOf(uuid) {
		case healthy:
			lift = true
		case unhealthy:
			lift = string(r.Spec.Taint.Effect) != t.effect // there is another rule
		case forgotten:
			lift = !present[uuid] // it was taken out
		}
		if !lift || r.Labels[managedBy] != manager || r.Labels[nodeLabel] != hash(t.node) {
			continue
		}
		// The rule that was listed, and no other of its name.
		only := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}
		err := t.api.call(ctx, http.MethodDelete, t.path+"/"+url.PathEscape(r.Name), "application/json", only, nil)
		if gone := new(refusal); errors.As(err, &gone) && gone.Code == http.StatusNotFound {
			err = nil
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		t.log.Info("lifted the taint of a device", "rule", r.Name, "gpu", uuid)
	}
	return errors.Join(failed...)
}

// find finds the newest version of the API that has rules.
func (t *taints) find(ctx context.Context) error {
	if t.path != "" {
		return nil
	}
	for _, version := range []string{"v1", "v1beta2", "v1alpha3"} {
		var list metav1.APIResourceList
		err := t.api.get(ctx, dra+version, nil, &list)
		if missing := new(refusal); errors.As(err, &missing) && missing.Code == http.StatusNotFound {
			continue
		}
		if err != nil {
			return err
		}
		for _, r := range list.APIResources {
			if r.Name == "devicetaintrules" {
				t.path = dra + version + "/devicetaintrules"
				return nil
			}
		}
	}
	return errors.New("the cluster has no DeviceTaintRules: enable device taints, which are on since Kubernetes 1.37, " +
		"or do without --taint")
}

// wanted returns the rules of the unhealthy GPUs' devices, which are the GPUs and their MIG devices, and
// the GPUs that have devices.
func (t *taints) wanted(ctx context.Context, stateOf func(uuid string) state) (all []resourcev1.DeviceTaintRule,
	present map[string]bool, err error) {
	var slices resourcev1.ResourceSliceList
	if err := t.api.get(ctx, dra+"v1/resourceslices", url.Values{
		"fieldSelector": {"spec.nodeName=" + t.node + ",spec.driver=" + driver}}, &slices); err != nil {
		return nil, nil, err
	}
	present = map[string]bool{}
	apiVersion := t.path[len("/apis/") : len(t.path)-len("/devicetaintrules")]
	for _, s := range slices.Items {
		if s.Spec.NodeName == nil || *s.Spec.NodeName != t.node || s.Spec.Driver != driver {
			continue
		}
		for _, d := range s.Spec.Devices {
			uuid := gpuOf(d)
			present[uuid] = true
			if uuid == "" || stateOf(uuid) != unhealthy || len(all) >= mostTaints {
				continue
			}
			pool, device, driver := s.Spec.Pool.Name, d.Name, driver
			all = append(all, resourcev1.DeviceTaintRule{
				TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "DeviceTaintRule"},
				ObjectMeta: metav1.ObjectMeta{
					Name:   "gpusteward-" + hash(t.node, pool, device, t.effect),
					Labels: map[string]string{managedBy: manager, nodeLabel: hash(t.node), uuidLabel: uuid},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: t.node,
						UID: t.owner}},
				},
				Spec: resourcev1.DeviceTaintRuleSpec{
					DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: &driver, Pool: &pool, Device: &device},
					Taint:          resourcev1.DeviceTaint{Key: taintKey, Effect: resourcev1.DeviceTaintEffect(t.effect)},
				},
			})
		}
	}
	return all, present, nil
}

// gpuOf returns the UUID of the GPU that a device is, or is a part of.
func gpuOf(d resourcev1.Device) string {
	for _, name := range []resourcev1.QualifiedName{"parentUUID", driver + "/parentUUID", "uuid", driver + "/uuid"} {
		if a, ok := d.Attributes[name]; ok && a.StringValue != nil {
			return *a.StringValue
		}
	}
	return ""
}
