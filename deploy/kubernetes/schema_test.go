package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/constant"
	"go/types"
	"maps"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-tools/pkg/crd"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
	"sigs.k8s.io/yaml"

	// Keep the packages in apis in go.mod.
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	_ "k8s.io/api/admissionregistration/v1"
	_ "k8s.io/api/apps/v1"
	_ "k8s.io/api/batch/v1"
	_ "k8s.io/api/networking/v1"
	_ "k8s.io/api/rbac/v1"
)

// apis maps each apiVersion to the Go package of its kinds. The schemas are generated from these
// types, as the operator generates its CRDs.
var apis = map[string]string{
	"v1":                              "k8s.io/api/core/v1",
	"apps/v1":                         "k8s.io/api/apps/v1",
	"batch/v1":                        "k8s.io/api/batch/v1",
	"networking.k8s.io/v1":            "k8s.io/api/networking/v1",
	"rbac.authorization.k8s.io/v1":    "k8s.io/api/rbac/v1",
	"admissionregistration.k8s.io/v1": "k8s.io/api/admissionregistration/v1",
	"monitoring.coreos.com/v1":        "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1",
}

// parsed parses the packages once for all tests.
var parsed = sync.OnceValues(func() (*crd.Parser, error) {
	var paths []string
	for _, path := range apis {
		paths = append(paths, path)
	}
	packages, err := loader.LoadRoots(paths...)
	if err != nil {
		return nil, err
	}
	registry := &markers.Registry{}
	if err := crdmarkers.Register(registry); err != nil {
		return nil, err
	}
	// Kubernetes marks a type with +enum if its constants are its only values.
	if err := registry.Define("enum", markers.DescribesType, struct{}{}); err != nil {
		return nil, err
	}
	p := &crd.Parser{Collector: &markers.Collector{Registry: registry}, Checker: &loader.TypeChecker{}}
	crd.AddKnownTypes(p)
	for _, pkg := range packages {
		p.NeedPackage(pkg)
	}
	for ident, info := range maps.Clone(p.Types) {
		if info.Markers.Get("enum") != nil {
			p.NeedSchemaFor(ident)
			s := p.Schemata[ident]
			s.Enum = constants(ident)
			p.Schemata[ident] = s
		}
	}
	return p, nil
})

// constants returns the values of the constants of a string type.
func constants(of crd.TypeIdent) (all []apiext.JSON) {
	scope, known := of.Package.Types.Scope(), map[string]bool{}
	for _, name := range scope.Names() {
		c, ok := scope.Lookup(name).(*types.Const)
		if !ok {
			continue
		}
		if named, ok := c.Type().(*types.Named); ok && named.Obj().Name() == of.Name {
			value := constant.StringVal(c.Val())
			if known[value] { // a constant kept under its former name
				continue
			}
			known[value] = true
			text, _ := json.Marshal(value)
			all = append(all, apiext.JSON{Raw: text})
		}
	}
	return all
}

// Compiled schemas by kind.
var (
	schemas = map[string]*jsonschema.Schema{}
	making  sync.Mutex // protects schemas
)

// schemaOf returns the schema of a kind.
func schemaOf(apiVersion, kind string) (*jsonschema.Schema, error) {
	making.Lock()
	defer making.Unlock()
	key := apiVersion + " " + kind
	if s, ok := schemas[key]; ok {
		return s, nil
	}
	p, err := parsed()
	if err != nil {
		return nil, err
	}
	for ident := range p.Types {
		if ident.Name != kind || loader.NonVendorPath(ident.Package.PkgPath) != apis[apiVersion] {
			continue
		}
		p.NeedFlattenedSchemaFor(ident)
		text, err := json.Marshal(p.FlattenedSchemata[ident])
		if err != nil {
			return nil, err
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		c := jsonschema.NewCompiler()
		c.DefaultDraft(jsonschema.Draft4)
		if err := c.AddResource(key, closed(document)); err != nil {
			return nil, err
		}
		s, err := c.Compile(key)
		if err == nil {
			schemas[key] = s
		}
		return s, err
	}
	return nil, fmt.Errorf("there is no kind %s", key)
}

// closed makes objects refuse properties that they do not list.
func closed(schema any) any {
	switch s := schema.(type) {
	case map[string]any:
		if properties, ok := s["properties"].(map[string]any); ok &&
			s["additionalProperties"] == nil && s["x-kubernetes-preserve-unknown-fields"] == nil {
			s["additionalProperties"] = false
			if s["type"] == nil { // a property with the name properties
				delete(s, "additionalProperties")
			}
			for _, p := range properties {
				closed(p)
			}
		}
		for key, value := range s {
			if key != "properties" {
				closed(value)
			}
		}
	case []any:
		for _, value := range s {
			closed(value)
		}
	}
	return schema
}

// validate reports why Kubernetes or the operator would refuse a manifest: unknown kinds, fields
// and values, and missing fields. It does not cover checks of the API server beyond the schemas.
func validate(manifest string) error {
	text, err := yaml.YAMLToJSONStrict([]byte(manifest))
	if err != nil {
		return err
	}
	var head struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Metadata   json.RawMessage `json:"metadata"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return err
	}
	schema, err := schemaOf(head.APIVersion, head.Kind)
	if err != nil {
		return err
	}
	metadata := json.NewDecoder(bytes.NewReader(head.Metadata)) // not part of the schemas
	metadata.DisallowUnknownFields()
	var meta metav1.ObjectMeta
	if err := metadata.Decode(&meta); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if meta.Name == "" {
		return fmt.Errorf("metadata.name is missing")
	}
	object, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(object)
}
