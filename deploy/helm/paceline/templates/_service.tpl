{{- /*
Parts of one service. They are called with a dict:
  root, cell, prefix  the chart's scope, the cell's number, the beginning of its names
  role, name          what the service is, and its deployment; without a name: all deployments of the role
  values              its part of values.yaml
  module, port, args  what runs: `python -m MODULE --listen 0.0.0.0:PORT ARGS`
*/}}

{{- /* The labels of its pods, by which they are found, too. */}}
{{- define "paceline.labels" -}}
{app.kubernetes.io/name: paceline, app.kubernetes.io/instance: {{ .root.Release.Name }}, app.kubernetes.io/component: {{ .role }}, paceline/cell: {{ .cell | quote }}{{ with .name }}, paceline/deployment: {{ . }}{{ end }}}
{{- end }}

{{- /* A name in DNS for the addresses of the pods that are ready. A pod that ends leaves it at once. */}}
{{- define "paceline.headless" -}}
apiVersion: v1
kind: Service
metadata: {name: {{ .prefix }}-{{ .role }}}
spec:
  clusterIP: None
  publishNotReadyAddresses: false
  selector: {{ include "paceline.labels" . }}
  ports: [{name: grpc, port: {{ .port }}, targetPort: main}]
{{- end }}

{{- /* How a probe asks for `health`: for a gateway a path, else a name of gRPC's health service. gRPC probes know no TLS. */}}
{{- define "paceline.probe" -}}
{{- $tls := .root.Values.tls.secret }}
{{- if eq .role "gateway" -}}
httpGet: {path: {{ .health }}, port: main, scheme: {{ ternary "HTTPS" "HTTP" (ne $tls "") }}}
{{- else if $tls -}}
exec: {command: [python, -m, paceline.rpc.health, "localhost:{{ .port }}"{{ with .health }}, {{ . }}{{ end }}]}
{{- else -}}
grpc: {port: {{ .port }}, service: {{ .health | quote }}}
{{- end }}
{{- end }}

{{- /* Variables: metrics, and secrets and their files as in deploy/compose. */}}
{{- define "paceline.env" -}}
{{- $of := printf "PACELINE_%s_" (upper .role) }}
{{- $keys := .root.Values.keysSecret }}
{{- $tls := "/etc/paceline/tls" -}}
- {name: {{ $of }}METRICS, value: "0.0.0.0:9464"}
{{- with and (not .isPublic) .root.Values.models.tokenSecret }}
- {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: {{ . }}, key: token}}}
{{- end }}
{{- if eq .role "coordinator" }}
# As long as the startup probe waits.
- {name: {{ $of }}CONNECT_TIMEOUT, value: "1800"}
{{- end }}
{{- if and .isPublic $keys }}
- {name: {{ $of }}API_KEYS, value: /etc/paceline/keys/api_keys}
{{- if eq .role "gateway" }}
- {name: PACELINE_API_KEY, valueFrom: {secretKeyRef: {name: {{ $keys }}, key: gateway, optional: true}}}
{{- end }}
{{- else if .isPublic }}
- {name: {{ $of }}NO_KEYS, value: "true"}
{{- if eq .role "gateway" }}
# As other namespaces call it.
- {name: {{ $of }}ALLOWED_HOSTS, value: "{{ .root.Release.Name }}-gateway.{{ .root.Release.Namespace }}"}
{{- end }}
{{- end }}
{{- if .root.Values.tls.secret }}
- {name: {{ $of }}TLS_CERT, value: {{ $tls }}/services.pem}
- {name: {{ $of }}TLS_KEY, value: {{ $tls }}/services.key}
{{- /* As a client: of the servers that it calls, and in health checks. */}}
{{- range $variable := ternary (list (print $of "SERVERS_TLS_") "PACELINE_TLS_") (list "PACELINE_TLS_") .isPublic }}
- {name: {{ $variable }}CA, value: {{ $tls }}/ca.pem}
- {name: {{ $variable }}CERT, value: {{ $tls }}/services.pem}
- {name: {{ $variable }}KEY, value: {{ $tls }}/services.key}
{{- end }}
{{- if .isPublic }}
- {name: {{ $of }}SERVERS_TLS_NAME, value: {{ .root.Values.tls.name | quote }}}
{{- else }}
- {name: {{ $of }}TLS_CLIENT_CA, value: {{ $tls }}/ca.pem}
{{- end }}
{{- end }}
{{- end }}

{{- define "paceline.deployment" -}}
{{- $isPublic := has .role (list "coordinator" "gateway") }}
{{- $isGateway := eq .role "gateway" }}
{{- $live := include "paceline.probe" (merge (dict "health" (ternary "/health" "live" $isGateway)) .) }}
{{- $ready := include "paceline.probe" (merge (dict "health" (ternary "/ready" "" $isGateway)) .) }}
{{- $models := .root.Values.models }}
{{- $claim := $models.claim | default (ternary (print .root.Release.Name "-models") "" (ne $models.size "")) -}}
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .prefix }}-{{ .name }}, labels: {{ include "paceline.labels" . }}}
spec:
  replicas: {{ .values.replicas }}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {{ include "paceline.labels" . }}}
  template:
    metadata:
      labels: {{ include "paceline.labels" . }}
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: "9464"}
    spec:
      # Kubernetes's variables (PACELINE_GATEWAY_PORT) would look like settings.
      enableServiceLinks: false
      automountServiceAccountToken: false
      # As process 1 Python would ignore a SIGTERM that comes before its handlers are installed.
      shareProcessNamespace: true
      # Draining takes up to 25 s.
      terminationGracePeriodSeconds: 45
      securityContext: {runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          matchLabelKeys: [pod-template-hash]
          labelSelector: {matchLabels: {{ include "paceline.labels" . }}}
      {{- with .values.pod }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      containers:
        - name: {{ .role }}
          image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [python, -m, {{ .module }}, --listen, "0.0.0.0:{{ .port }}"]
          args: {{- concat .args (.values.args | default list) | toYaml | nindent 12 }}
          env: {{- include "paceline.env" (merge (dict "isPublic" $isPublic) .) | nindent 12 }}
          ports: [{name: main, containerPort: {{ .port }}}, {name: metrics, containerPort: 9464}]
          # Half an hour: the first start may download a model.
          startupProbe: { {{- $live }}, periodSeconds: 2, timeoutSeconds: 5, failureThreshold: 900}
          # Only a process that does not respond is restarted, not one whose servers are away.
          livenessProbe: { {{- $live }}, periodSeconds: 10, timeoutSeconds: 5}
          readinessProbe: { {{- $ready }}, periodSeconds: 2, timeoutSeconds: 5}
          {{- if $isGateway }}
          # Connections still come until all nodes know that the pod ends.
          lifecycle: {preStop: {sleep: {seconds: 5}}}
          {{- end }}
          resources: {{- toYaml .values.resources | nindent 12 }}
          securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            - {name: cache, mountPath: /home/paceline/.cache/paceline}
            {{- if and $isPublic .root.Values.keysSecret }}
            - {name: keys, mountPath: /etc/paceline/keys, readOnly: true}
            {{- end }}
            {{- if .root.Values.tls.secret }}
            - {name: tls, mountPath: /etc/paceline/tls, readOnly: true}
            {{- end }}
      volumes:
        - {name: tmp, emptyDir: {}}
        - {name: cache, {{ if and $claim (not $isPublic) }}persistentVolumeClaim: {claimName: {{ $claim }}}{{ else }}emptyDir: {}{{ end }}}
        {{- if and $isPublic .root.Values.keysSecret }}
        - {name: keys, secret: {secretName: {{ .root.Values.keysSecret }}, items: [{key: api_keys, path: api_keys}]}}
        {{- end }}
        {{- with .root.Values.tls.secret }}
        - {name: tls, secret: {secretName: {{ . }}, defaultMode: 0440}}
        {{- end }}
---
# Nodes are drained one pod at a time.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: {{ .prefix }}-{{ .name }}}
spec: {maxUnavailable: 1, selector: {matchLabels: {{ include "paceline.labels" . }}}}
{{- end }}
