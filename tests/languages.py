# ruff: noqa: RUF001
"""Texts in many scripts, written for these tests."""

TEXTS = {
    "English": """The quick brown fox, jumping over the lazy dog, was seen by nobody.
Nobody believed the old sailor; the fox, he said, came back every evening in 1912.
Don't stop now: the harbour is near, and the boats are painted.
A young doctor repaired the boat before breakfast.""",
    "Korean": """한국어 문장은 짧다.
영화가 정말 재미있어서 두 번이나 봤습니다.
어제 친구와 함께 바다에 갔는데 날씨가 아주 좋았다.
이 배우의 연기는 언제나 믿고 볼 수 있다.""",
    "Russian": """Чёрные дни прошли, и снова взошло солнце.
Старый моряк починил лодку ещё до завтрака.
Никто не поверил молодому врачу, который жил у гавани.
Весной в саду цветут яблони, а осенью падают листья.""",
    "Chinese": """今天天气很好，我们去公园散步。
老水手在早饭前修好了小船。
没有人相信住在港口旁边的年轻医生。
春天花开，秋天叶落。""",
    "Japanese": """今日はとても天気がいいので、公園を散歩します。
年老いた船乗りは朝ごはんの前にボートを直した。
港のそばに住む若い医者の話を誰も信じなかった。
カメラとコーヒーが好きです。""",
    "Arabic": """ذهبنا اليوم إلى الحديقة لأن الطقس جميل.
أصلح البحار العجوز القارب قبل الفطور.
لم يصدق أحد الطبيب الشاب الذي يسكن قرب الميناء.
في الربيع تزهر أشجار التفاح.""",
    "Hindi": """आज मौसम बहुत अच्छा है, इसलिए हम बगीचे में टहलने गए।
बूढ़े नाविक ने नाश्ते से पहले नाव की मरम्मत की।
बंदरगाह के पास रहने वाले युवा डॉक्टर पर किसी ने विश्वास नहीं किया।
वसंत में सेब के पेड़ खिलते हैं।""",
    "Thai": """วันนี้อากาศดีมาก เราจึงไปเดินเล่นที่สวน
กะลาสีชราซ่อมเรือก่อนอาหารเช้า
ไม่มีใครเชื่อหมอหนุ่มที่อยู่ใกล้ท่าเรือ""",
    "Finnish": """Vanha merimies korjasi veneen ennen aamiaista.
Kukaan ei uskonut nuorta lääkäriä, joka asui sataman lähellä.
Keväällä omenapuut kukkivat ja syksyllä lehdet putoavat.""",
}
