package kubernetes

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// TestOwnNodeOnly evaluates the admission policy of the account that reports health.
func TestOwnNodeOnly(t *testing.T) {
	t.Parallel()
	policy := one[admissionv1.ValidatingAdmissionPolicy](t, render(t, "testdata/health.yaml"), "ValidatingAdmissionPolicy")
	binding := one[admissionv1.ValidatingAdmissionPolicyBinding](t, render(t, "testdata/health.yaml"),
		"ValidatingAdmissionPolicyBinding")
	if binding.Spec.PolicyName != policy.Name || len(binding.Spec.ValidationActions) != 1 ||
		binding.Spec.ValidationActions[0] != admissionv1.Deny || *policy.Spec.FailurePolicy != admissionv1.Fail {
		t.Errorf("%+v", binding)
	}
	env, err := cel.NewEnv(cel.Variable("request", cel.DynType), cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType), cel.Variable("variables", cel.DynType))
	must(t, err)
	evaluate := func(expression string, in map[string]any) any {
		t.Helper()
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := env.Program(ast)
		must(t, err)
		out, _, err := program.Eval(in)
		if err != nil {
			return err
		}
		return out.Value()
	}
	// admits evaluates conditions, variables and validations in their order, as the API server does.
	admits := func(in map[string]any) bool {
		t.Helper()
		for _, c := range policy.Spec.MatchConditions {
			if evaluate(c.Expression, in) != true {
				return true // the policy is about others
			}
		}
		variables := map[string]any{}
		in["variables"] = variables
		for _, v := range policy.Spec.Variables {
			variables[v.Name] = evaluate(v.Expression, in)
		}
		for _, v := range policy.Spec.Validations {
			if evaluate(v.Expression, in) != true {
				return false
			}
		}
		return true
	}
	const ours = "system:serviceaccount:gpusteward:gpusteward"
	request := func(user, node, resource, name, operation string) map[string]any {
		info := map[string]any{"username": user}
		if node != "" {
			info["extra"] = map[string]any{"authentication.kubernetes.io/node-name": []any{node}}
		}
		return map[string]any{"userInfo": info, "resource": map[string]any{"resource": resource}, "name": name,
			"operation": operation}
	}
	rule := func(pool string) map[string]any {
		return map[string]any{"spec": map[string]any{"deviceSelector": map[string]any{"pool": pool}}}
	}
	all := map[string]any{"spec": map[string]any{}} // selects every device
	for _, c := range []struct {
		what                 string
		request, object, old map[string]any
		admitted             bool
	}{
		{what: "its node", request: request(ours, "a", "nodes", "a", "UPDATE"), admitted: true},
		{what: "another node", request: request(ours, "a", "nodes", "b", "UPDATE")},
		{what: "a token without a node", request: request(ours, "", "nodes", "a", "UPDATE")},
		{what: "another account", request: request("system:node:b", "", "nodes", "a", "UPDATE"), admitted: true},
		{what: "a rule", request: request(ours, "a", "devicetaintrules", "r", "CREATE"), object: rule("a"), admitted: true},
		{what: "a rule of another node", request: request(ours, "a", "devicetaintrules", "r", "CREATE"), object: rule("b")},
		{what: "a rule for all", request: request(ours, "a", "devicetaintrules", "r", "CREATE"), object: all},
		{what: "its rule", request: request(ours, "a", "devicetaintrules", "r", "DELETE"), old: rule("a"), admitted: true},
		{what: "another's rule", request: request(ours, "a", "devicetaintrules", "r", "DELETE"), old: rule("b")},
	} {
		if got := admits(map[string]any{"request": c.request, "object": c.object, "oldObject": c.old}); got != c.admitted {
			t.Errorf("%s: admitted %v", c.what, got)
		}
	}
	resources := ""
	for _, r := range policy.Spec.MatchConstraints.ResourceRules {
		resources += strings.Join(r.Resources, " ") + " "
	}
	if resources != "nodes/status devicetaintrules " {
		t.Errorf("the policy is about %s", resources)
	}
}
