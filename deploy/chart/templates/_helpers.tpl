{{- define "turnkeeper.labels" -}}
app.kubernetes.io/name: turnkeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "turnkeeper.select" -}}
app.kubernetes.io/name: turnkeeper
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "turnkeeper.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  - {name: tmp, emptyDir: {}}
  - {name: data, emptyDir: {}}
  {{- if .Values.config }}
  - name: config
    configMap: {name: {{ .Release.Name }}-config}
  {{- end }}
{{- end }}

{{- define "turnkeeper.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
envFrom:
  - secretRef: {name: {{ .Values.secret }}}
env:
  - {name: MEMORY_WORK, value: "false"}
  {{- range $name, $value := .Values.env }}
  {{- if not (and $.Values.config (eq $name "TURNKEEPER_CONFIG")) }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- end }}
  {{- if .Values.config }}
  - {name: TURNKEEPER_CONFIG, value: /etc/turnkeeper/turnkeeper.yaml}
  {{- end }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: data, mountPath: /data}
  {{- if .Values.config }}
  - {name: config, mountPath: /etc/turnkeeper, readOnly: true}
  {{- end }}
{{- end }}
