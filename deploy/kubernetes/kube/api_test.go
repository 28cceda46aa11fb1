package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// A server is as much of an API server as this program sees. It permits what the chart's role permits.
type server struct {
	t       *testing.T
	mu      sync.Mutex
	role    rbacv1.ClusterRole
	version string // that has rules
	node    corev1.Node
	slices  []resourcev1.ResourceSlice
	rules   map[string]resourcev1.DeviceTaintRule
	uids    int
	fail    string         // a verb that is answered with 500
	did     map[string]int // verbs, with resources
}

// serve starts a server with a node that has GPUs.
func serve(t *testing.T) (*server, *api) {
	t.Helper()
	s := &server{t: t, version: "v1", rules: map[string]resourcev1.DeviceTaintRule{}, did: map[string]int{}}
	s.node.Name, s.node.UID = "node-1", "uid-of-node-1"
	s.node.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True"}}
	text, err := os.ReadFile("../testdata/health.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "---\n") {
		if strings.Contains(document, "\nkind: ClusterRole\n") {
			if err := yaml.UnmarshalStrict([]byte(document), &s.role); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, &api{h.Client(), h.URL}
}

// device is a device of NVIDIA's driver.
func device(name string, attributes ...string) resourcev1.Device {
	d := resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}}
	for i := 0; i < len(attributes); i += 2 {
		d.Attributes[resourcev1.QualifiedName(attributes[i])] = resourcev1.DeviceAttribute{StringValue: &attributes[i+1]}
	}
	return d
}

func slice(node, driver string, devices ...resourcev1.Device) resourcev1.ResourceSlice {
	return resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &node,
		Pool: resourcev1.ResourcePool{Name: node}, Devices: devices}}
}

// permits reports whether the role permits a call. Everybody may discover.
func (s *server) permits(group, resource, verb string) bool {
	return slices.ContainsFunc(s.role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) &&
			slices.Contains(r.Verbs, verb)
	})
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	refuse := func(code int, text string) {
		answer(code, metav1.Status{Code: int32(code), Message: text, Status: metav1.StatusFailure})
	}
	node := "/api/v1/nodes/" + s.node.Name
	rules := dra + s.version + "/devicetaintrules"
	name, named := strings.CutPrefix(r.URL.Path, rules+"/")
	var group, resource, verb string
	switch {
	case r.URL.Path == node && r.Method == http.MethodGet:
		resource, verb = "nodes", "get"
	case r.URL.Path == node+"/status" && r.Method == http.MethodPatch:
		resource, verb = "nodes/status", "patch"
	case r.URL.Path == dra+"v1/resourceslices":
		group, resource, verb = "resource.k8s.io", "resourceslices", "list"
	case r.URL.Path == rules || named:
		group, resource = "resource.k8s.io", "devicetaintrules"
		verb = map[string]string{http.MethodGet: "list", http.MethodPost: "create", http.MethodDelete: "delete"}[r.Method]
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, dra):
		list := metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "resourceslices"}}}
		switch version := strings.TrimPrefix(r.URL.Path, dra); version {
		case s.version:
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: "devicetaintrules"})
		case "v1":
		default:
			refuse(http.StatusNotFound, "no such version")
			return
		}
		answer(http.StatusOK, list)
		return
	default:
		refuse(http.StatusNotFound, "no such path")
		return
	}
	s.did[verb+" "+resource]++
	switch {
	case !s.permits(group, resource, verb):
		refuse(http.StatusForbidden, fmt.Sprintf("the role does not permit %s %s", verb, resource))
		return
	case s.fail != "" && strings.HasPrefix(verb+" "+resource, s.fail):
		refuse(http.StatusInternalServerError, "it fails")
		return
	}
	switch verb + " " + resource {
	case "get nodes":
		answer(http.StatusOK, s.node)
	case "patch nodes/status":
		if r.Header.Get("Content-Type") != string(types.StrategicMergePatchType) {
			refuse(http.StatusUnsupportedMediaType, r.Header.Get("Content-Type"))
			return
		}
		before, _ := json.Marshal(s.node)
		after, err := strategicpatch.StrategicMergePatch(before, body, corev1.Node{})
		if err == nil {
			s.node = corev1.Node{}
			err = json.Unmarshal(after, &s.node)
		}
		if err != nil {
			refuse(http.StatusBadRequest, err.Error())
			return
		}
		answer(http.StatusOK, s.node)
	case "list resourceslices":
		selector, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
		if err != nil {
			refuse(http.StatusBadRequest, err.Error())
			return
		}
		var list resourcev1.ResourceSliceList
		for _, one := range s.slices {
			if selector.Matches(fields.Set{"spec.nodeName": *one.Spec.NodeName, "spec.driver": one.Spec.Driver}) {
				list.Items = append(list.Items, one)
			}
		}
		answer(http.StatusOK, list)
	case "list devicetaintrules":
		selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err != nil {
			refuse(http.StatusBadRequest, err.Error())
			return
		}
		var list resourcev1.DeviceTaintRuleList
		for _, one := range s.rules {
			if selector.Matches(labels.Set(one.Labels)) {
				list.Items = append(list.Items, one)
			}
		}
		answer(http.StatusOK, list)
	case "create devicetaintrules":
		var rule resourcev1.DeviceTaintRule
		if err := yaml.UnmarshalStrict(body, &rule); err != nil || rule.APIVersion != "resource.k8s.io/"+s.version {
			refuse(http.StatusBadRequest, fmt.Sprint(err, rule.APIVersion))
			return
		}
		if _, there := s.rules[rule.Name]; there {
			refuse(http.StatusConflict, "it exists")
			return
		}
		s.put(rule)
		answer(http.StatusCreated, rule)
	case "delete devicetaintrules":
		var options metav1.DeleteOptions
		rule, there := s.rules[name]
		switch err := json.Unmarshal(body, &options); {
		case err != nil:
			refuse(http.StatusBadRequest, err.Error())
		case !there:
			refuse(http.StatusNotFound, "no such rule")
		case options.Preconditions == nil || *options.Preconditions.UID != rule.UID:
			refuse(http.StatusConflict, "another UID")
		default:
			delete(s.rules, name)
			answer(http.StatusOK, metav1.Status{})
		}
	}
}

func (s *server) put(rule resourcev1.DeviceTaintRule) {
	s.uids++
	rule.UID = types.UID(fmt.Sprint("uid-", s.uids))
	s.rules[rule.Name] = rule
}

// tainted returns the devices that rules select, as device:effect, sorted.
func (s *server) tainted() string {
	var all []string
	for _, r := range s.rules {
		all = append(all, *r.Spec.DeviceSelector.Device+":"+string(r.Spec.Taint.Effect))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
